//! Which replicas a gateway lets be picked: those of a route, a zone, a rollout.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

/// Most entries of a list that are read. What lies beyond can't be picked, which still is within the list.
const MOST_LISTED: usize = 16_384;

/// The replicas that may be picked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Among {
    /// All of them.
    #[default]
    All,
    /// Those, and when there are none, none.
    Listed(Listed),
}

/// Replicas by where they are.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Listed {
    addresses: BTreeSet<SocketAddr>,
    ips: BTreeSet<IpAddr>,
    in_turn: bool,
}

impl Among {
    /// What a gateway gives in a request's metadata (endpoint picker protocol): `ip:port` texts, or such texts in one,
    /// separated by commas. An entry without a port names no replica, as an IP may have several.
    #[must_use]
    pub fn hinted<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let entries = texts.into_iter().flat_map(|it| it.split(',')).take(MOST_LISTED);
        Self::Listed(Listed { addresses: entries.filter_map(address).collect(), ..Listed::default() })
    }

    /// What a conformance test asks for in a header: `ip:port`, or `ip` for each of its ports, separated by commas;
    /// what they leave is picked in turn.
    #[must_use]
    pub fn selected(text: &str) -> Self {
        let mut listed = Listed { in_turn: true, ..Listed::default() };
        for entry in text.split(',').take(MOST_LISTED) {
            if let Some(address) = address(entry) {
                listed.addresses.insert(address);
            } else if let Ok(ip) = entry.trim().parse() {
                listed.ips.insert(ip);
            }
        }
        Self::Listed(listed)
    }

    /// Whether a replica there may be picked, each of its ranks included.
    #[must_use]
    pub fn has(&self, address: SocketAddr) -> bool {
        match self {
            Self::All => true,
            Self::Listed(it) => it.addresses.contains(&address) || it.ips.contains(&address.ip()),
        }
    }

    /// Whether it leaves some out.
    #[must_use]
    pub const fn is_listed(&self) -> bool {
        matches!(self, Self::Listed(_))
    }

    /// Whether those that are left are picked in turn, whatever they hold.
    #[must_use]
    pub const fn is_in_turn(&self) -> bool {
        matches!(self, Self::Listed(Listed { in_turn: true, .. }))
    }
}

fn address(text: &str) -> Option<SocketAddr> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_hint_means_addresses_exactly() {
        for hint in
            [&["10.0.0.1:8000", "[fd00::1]:8000"][..], &[" 10.0.0.1:8000 ,[fd00::1]:8000,, 10.0.0.2,x"]]
        {
            let among = Among::hinted(hint.iter().copied());
            assert!(among.has(at("10.0.0.1:8000")) && among.has(at("[fd00::1]:8000")), "{hint:?}");
            assert!(!among.has(at("10.0.0.1:8001")) && !among.has(at("10.0.0.2:8000")), "{hint:?}");
            assert!(among.is_listed() && !among.is_in_turn());
        }
        assert!(!Among::hinted([]).has(at("10.0.0.1:8000")), "an empty list is not no list");
        assert!(Among::All.has(at("10.0.0.1:8000")) && !Among::All.is_listed());
    }

    #[test]
    fn a_test_may_name_ips() {
        let among = Among::selected("10.0.0.1, 10.0.0.2:8001");
        assert!(among.has(at("10.0.0.1:1")) && among.has(at("10.0.0.1:2")) && among.has(at("10.0.0.2:8001")));
        assert!(!among.has(at("10.0.0.2:8000")) && among.is_in_turn());
        assert!(!Among::selected("").has(at("10.0.0.1:1")));
    }
}
