//! The table of replicas, which come and go.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use kvpick_proto::words::ReplicaName;

use super::{Memory, Replica, ReplicaSpec};

/// One replica. Numbers rise and none is used twice, so that what was remembered of one that is gone finds nothing.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ReplicaId(u64);

impl ReplicaId {
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    #[cfg(test)]
    pub(crate) const fn of(number: u64) -> Self {
        Self(number)
    }
}

/// All replicas that there are.
#[derive(Debug, Default)]
pub struct Replicas {
    /// By rising number.
    all: Vec<(ReplicaId, Replica)>,
    next: u64,
    memory: Memory,
}

impl Replicas {
    /// A table of these, of which nothing is known yet. Of two with one name the first stays.
    #[must_use]
    pub fn new(specs: Vec<ReplicaSpec>, memory: &Memory) -> Self {
        let mut table = Self { memory: *memory, ..Self::default() };
        drop(table.set(specs));
        table
    }

    /// From now on there are these. One that was there by the same name and uid keeps its number and all that is known of
    /// it; nothing is known of any other. Of two with one name the first counts. Returns those that are gone, in no order.
    pub fn set(&mut self, specs: Vec<ReplicaSpec>) -> Vec<(ReplicaId, Replica)> {
        let mut seen = BTreeSet::new();
        let specs: Vec<_> = specs.into_iter().filter(|it| seen.insert(it.name)).collect();
        let mut ranks: BTreeMap<SocketAddr, usize> = BTreeMap::new();
        specs.iter().for_each(|it| *ranks.entry(it.name.address).or_default() += 1);
        let mut before: BTreeMap<ReplicaName, (ReplicaId, Replica)> =
            std::mem::take(&mut self.all).into_iter().map(|it| (it.1.spec.name, it)).collect();
        for spec in specs {
            let shares_address = ranks[&spec.name.address] > 1;
            let is_same = before.get(&spec.name).is_some_and(|(_, it)| it.spec.uid == spec.uid);
            let stays = if is_same { before.remove(&spec.name) } else { None };
            let (id, replica) = match stays {
                Some((id, replica)) => (id, Replica { spec, ..replica }),
                None => {
                    self.next += 1;
                    (ReplicaId(self.next), Replica::new(spec, &self.memory))
                }
            };
            self.all.push((id, Replica { shares_address, ..replica }));
        }
        self.all.sort_by_key(|(id, _)| *id);
        before.into_values().collect()
    }

    /// The replica of that number, if it is still there.
    #[must_use]
    pub fn get(&self, id: ReplicaId) -> Option<&Replica> {
        let place = self.place(id)?;
        Some(&self.all[place].1)
    }

    /// As [`Self::get`], to change it.
    #[must_use]
    pub fn get_mut(&mut self, id: ReplicaId) -> Option<&mut Replica> {
        let place = self.place(id)?;
        Some(&mut self.all[place].1)
    }

    /// The replica of that name.
    #[must_use]
    pub fn find(&self, name: &ReplicaName) -> Option<ReplicaId> {
        self.iter().find(|(_, it)| it.spec.name == *name).map(|(id, _)| id)
    }

    /// The replicas behind that address.
    #[must_use]
    pub fn at(&self, address: SocketAddr) -> Vec<ReplicaId> {
        self.iter().filter(|(_, it)| it.spec.name.address == address).map(|(id, _)| id).collect()
    }

    /// Each replica with its number.
    pub fn iter(&self) -> impl Iterator<Item = (ReplicaId, &Replica)> {
        self.all.iter().map(|(id, it)| (*id, it))
    }

    /// As [`Self::iter`], to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ReplicaId, &mut Replica)> {
        self.all.iter_mut().map(|(id, it)| (*id, it))
    }

    fn place(&self, id: ReplicaId) -> Option<usize> {
        // As long as none has come or gone, it stands where its number says.
        let likely = usize::try_from(id.0).ok()?.checked_sub(1)?;
        if self.all.get(likely).is_some_and(|it| it.0 == id) {
            return Some(likely);
        }
        self.all.binary_search_by_key(&id, |it| it.0).ok()
    }
}

/// For numbers that were read from the table since it was last set.
impl std::ops::Index<ReplicaId> for Replicas {
    type Output = Replica;

    fn index(&self, id: ReplicaId) -> &Replica {
        let place = self.place(id).unwrap_or(usize::MAX);
        &self.all[place].1
    }
}

impl std::ops::IndexMut<ReplicaId> for Replicas {
    fn index_mut(&mut self, id: ReplicaId) -> &mut Replica {
        let place = self.place(id).unwrap_or(usize::MAX);
        &mut self.all[place].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(port: u16, uid: &str) -> ReplicaSpec {
        let name = ReplicaName { address: ([127, 0, 0, 1], port).into(), rank: 0 };
        ReplicaSpec { uid: uid.to_owned(), ..ReplicaSpec::listed(name, None, Vec::new()) }
    }

    #[test]
    fn who_stays_keeps_its_number_and_nobody_gets_it_after() {
        let mut table = Replicas::new(vec![spec(1, "a"), spec(2, "b"), spec(3, "c")], &Memory::default());
        let ids: Vec<_> = table.iter().map(|(id, _)| id).collect();
        let gone = table.set(vec![spec(3, "c"), spec(1, "a"), spec(2, "d"), spec(3, "e")]);
        assert_eq!(
            gone.into_iter().map(|(id, it)| (id, it.spec.uid)).collect::<Vec<_>>(),
            [(ids[1], "b".to_owned())]
        );
        let after: Vec<_> = table.iter().map(|(id, it)| (id, it.spec.uid.as_str())).collect();
        assert_eq!(after[..2], [(ids[0], "a"), (ids[2], "c")]);
        assert!(after[2].1 == "d" && ids[2] < after[2].0, "{after:?}");
        assert!(table.get(ids[1]).is_none() && table.get_mut(ids[1]).is_none());
        assert_eq!(table.set(Vec::new()).len(), 3);
        assert_eq!(table.set(vec![spec(1, "a")]).len(), 0);
        assert!(table.get(ids[0]).is_none(), "the same pod, but nothing was kept");
    }

    #[test]
    fn what_is_said_anew_of_one_that_stays_counts() {
        let mut table = Replicas::new(vec![spec(1, "a")], &Memory::default());
        let id = table.find(&spec(1, "").name).unwrap();
        table.set(vec![ReplicaSpec { is_away: true, node: Some("n".to_owned()), ..spec(1, "a") }]);
        assert!(table[id].spec.is_away && table[id].spec.node.as_deref() == Some("n"));
    }
}
