//! Who reaches whom under NetworkPolicies, by their rules: a pod that no policy of a direction selects is open in it;
//! else one rule of one of them has to allow the peer and the port. A connection needs both sides' leave.

use serde_json::Value;

use crate::made::{Made, NAMESPACE, list, text};

/// A pod as policies see it.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    namespace: String,
    namespace_labels: Vec<(String, String)>,
    labels: Vec<(String, String)>,
}

fn pairs(labels: &[(&str, &str)]) -> Vec<(String, String)> {
    labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

impl Pod {
    /// A pod in a namespace; the namespace has these labels beside its name.
    pub(crate) fn new(namespace: &str, namespace_labels: &[(&str, &str)], labels: &[(&str, &str)]) -> Self {
        let mut namespace_labels = pairs(namespace_labels);
        namespace_labels.push(("kubernetes.io/metadata.name".to_owned(), namespace.to_owned()));
        Self { namespace: namespace.to_owned(), namespace_labels, labels: pairs(labels) }
    }

    /// A pod of a template that is among the objects.
    pub(crate) fn made(made: &Made, name: &str) -> Self {
        let template = &made.pods()[name];
        let labels = template["metadata"]["labels"].as_object().unwrap();
        let labels: Vec<_> = labels.iter().map(|(name, it)| (name.as_str(), it.as_str().unwrap())).collect();
        Self::new(NAMESPACE, &[], &labels)
    }
}

/// Whether one may open a TCP connection to a port of the other.
pub(crate) fn reaches(made: &Made, from: &Pod, to: &Pod, port: u16) -> bool {
    allowed(made, from, "Egress", to, port) && allowed(made, to, "Ingress", from, port)
}

/// Whether one may open a TCP connection to an address that is no pod's; blocks of all addresses are all that is
/// looked at.
pub(crate) fn reaches_outside(made: &Made, from: &Pod, port: u16) -> bool {
    let outside = |peer: &Value| peer["ipBlock"]["cidr"] == "0.0.0.0/0";
    let policies = selecting(made, from, "Egress");
    let rules = policies.iter().flat_map(|it| list(&it["spec"]["egress"]));
    policies.is_empty()
        || rules.into_iter().any(|it| has_port(it, port) && list(&it["to"]).iter().any(outside))
}

fn selecting<'a>(made: &'a Made, pod: &Pod, direction: &str) -> Vec<&'a Value> {
    let selects = |policy: &&Value| {
        let is_here = policy["metadata"]["namespace"] == pod.namespace.as_str();
        let has = list(&policy["spec"]["policyTypes"]).contains(&direction.into());
        is_here && has && matches(&policy["spec"]["podSelector"], &pod.labels)
    };
    made.of("NetworkPolicy").into_iter().filter(selects).collect()
}

fn allowed(made: &Made, pod: &Pod, direction: &str, peer: &Pod, port: u16) -> bool {
    let policies = selecting(made, pod, direction);
    let (rules, peers) = if direction == "Egress" { ("egress", "to") } else { ("ingress", "from") };
    let mut rules = policies.iter().flat_map(|it| list(&it["spec"][rules]));
    policies.is_empty() || rules.any(|it| has_port(it, port) && has_peer(&it[peers], peer, &pod.namespace))
}

fn has_port(rule: &Value, port: u16) -> bool {
    let (ports, port) = (list(&rule["ports"]), u64::from(port));
    let has = |it: &Value| {
        let first = it["port"].as_u64().unwrap();
        it["protocol"] == "TCP" && (first..=it["endPort"].as_u64().unwrap_or(first)).contains(&port)
    };
    ports.is_empty() || ports.iter().any(has)
}

fn has_peer(peers: &Value, pod: &Pod, own: &str) -> bool {
    let has = |peer: &Value| {
        if peer.get("ipBlock").is_some() {
            // Blocks are for what is no pod.
            return false;
        }
        let in_namespace = match peer.get("namespaceSelector") {
            Some(selector) => matches(selector, &pod.namespace_labels),
            None => pod.namespace == own,
        };
        in_namespace && peer.get("podSelector").is_none_or(|it| matches(it, &pod.labels))
    };
    list(peers).is_empty() || list(peers).iter().any(has)
}

/// Whether a selector of `matchLabels` takes these.
pub(crate) fn matches(selector: &Value, labels: &[(String, String)]) -> bool {
    assert!(selector.get("matchExpressions").is_none(), "not known here: {selector}");
    let Some(wanted) = selector["matchLabels"].as_object() else { return true };
    wanted.iter().all(|(name, value)| labels.contains(&(name.clone(), text(value))))
}
