//! Who owns which address.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::{IpAddr, SocketAddr},
};

use crate::Pod;

/// One serving address of a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Endpoint {
    /// The pod's main address and a target port.
    pub address: SocketAddr,
    /// The pod's.
    pub uid: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's node.
    pub node: Option<String>,
    /// Whether it is to be sent requests: its pod is ready and not about to be deleted, as the endpoint picker protocol has it.
    pub is_ready: bool,
}

/// The endpoints of those pods: each pod's main address with each port, sorted. A pod that is over has none, nor has one
/// without an address. Of two pods with one address, which there are for a moment when it is used again, the one that is not
/// about to go has it, then the younger.
#[must_use]
pub fn endpoints(pods: &[Pod], ports: &[u16]) -> Vec<Endpoint> {
    let mut owners: BTreeMap<IpAddr, &Pod> = BTreeMap::new();
    for pod in pods.iter().filter(|it| !it.is_over) {
        let Some(address) = pod.addresses.first() else { continue };
        let rank = |it: &Pod| (!it.is_deleting, it.created, it.uid.clone());
        match owners.entry(*address) {
            Entry::Vacant(vacant) => {
                vacant.insert(pod);
            }
            Entry::Occupied(mut other) if rank(other.get()) < rank(pod) => {
                other.insert(pod);
            }
            Entry::Occupied(_) => {}
        }
    }
    let mut endpoints = Vec::new();
    for (ip, pod) in owners {
        endpoints.extend(ports.iter().map(|port| Endpoint {
            address: SocketAddr::new(ip, *port),
            uid: pod.uid.clone(),
            pod: pod.name.clone(),
            node: pod.node.clone(),
            is_ready: pod.is_ready && !pod.is_deleting,
        }));
    }
    endpoints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, ip: &str, created: i64) -> Pod {
        let addresses = ip.parse().into_iter().collect();
        Pod { uid: uid.to_owned(), addresses, created, is_ready: true, ..Pod::default() }
    }

    fn owners(pods: &[Pod]) -> Vec<(String, String, bool)> {
        endpoints(pods, &[8000]).into_iter().map(|it| (it.address.to_string(), it.uid, it.is_ready)).collect()
    }

    fn owner(address: &str, uid: &str, is_ready: bool) -> (String, String, bool) {
        (address.to_owned(), uid.to_owned(), is_ready)
    }

    #[test]
    fn each_address_with_each_port() {
        let mut second = pod("b", "fd00::2", 1);
        second.is_ready = false;
        let found = endpoints(&[pod("a", "10.0.0.1", 1), second, pod("c", "", 1)], &[8000, 8001]);
        let found: Vec<_> = found.into_iter().map(|it| (it.address.to_string(), it.is_ready)).collect();
        let want = [
            ("10.0.0.1:8000", true),
            ("10.0.0.1:8001", true),
            ("[fd00::2]:8000", false),
            ("[fd00::2]:8001", false),
        ];
        assert_eq!(found, want.map(|(address, is_ready)| (address.to_owned(), is_ready)));
    }

    #[test]
    fn an_address_that_is_used_again_is_the_newers_whatever_comes_first() {
        let former = Pod { is_deleting: true, ..pod("old", "10.0.0.1", 5) };
        let late = Pod { is_ready: false, ..pod("new", "10.0.0.1", 5) };
        for pods in [[former.clone(), late.clone()], [late.clone(), former.clone()]] {
            assert_eq!(owners(&pods), [owner("10.0.0.1:8000", "new", false)]);
        }
        let younger = pod("a", "10.0.0.1", 6);
        for pods in [[younger.clone(), late.clone()], [late, younger]] {
            assert_eq!(owners(&pods), [owner("10.0.0.1:8000", "a", true)]);
        }
        assert_eq!(owners(&[former]), [owner("10.0.0.1:8000", "old", false)]);
        let over = Pod { is_over: true, ..pod("over", "10.0.0.1", 9) };
        assert_eq!(owners(&[over]), []);
    }
}
