//! Objects that name each other, what accounts may do, and who reaches whom.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    everything,
    made::{Made, NAMESPACE, base_with, chart, list, named, release, text, with},
    reach::{Pod, matches, reaches, reaches_outside},
};

fn labels(object: &Value) -> Vec<(String, String)> {
    object.as_object().unwrap().iter().map(|(name, value)| (name.clone(), text(value))).collect()
}

#[test]
fn what_is_named_is_there() {
    for made in everything() {
        all_names_lead_somewhere(&made);
    }
}

#[test]
fn two_releases_of_the_chart_keep_apart() {
    let (first, second) = (chart(&[]), release("second"));
    all_names_lead_somewhere(&second);
    let names = |made: &Made| made.objects.iter().map(named).collect::<BTreeSet<_>>();
    assert_eq!(names(&first).intersection(&names(&second)).count(), 0);
    // No selector of one takes a pod of the other.
    for service in second.of("Service") {
        let selector = json!({"matchLabels": service["spec"]["selector"]});
        for pod in first.pods().values() {
            assert!(!matches(&selector, &labels(&pod["metadata"]["labels"])));
        }
    }
    let config = second.config(&second.pods()["second-kvpick"], "kvpick.yaml");
    assert!(config.contains("app.kubernetes.io/instance=second"));
    let config = second.config(&second.pods()["second-kvpick-agent"], "kvpick-agent.yaml");
    assert!(config.contains("second-kvpick-feed:9004"));
}

fn all_names_lead_somewhere(made: &Made) {
    let pods = made.pods();
    for pod in pods.values() {
        made.one("ServiceAccount", &text(&pod["spec"]["serviceAccountName"]));
        for volume in list(&pod["spec"]["volumes"]) {
            if let Some(name) = volume.pointer("/configMap/name") {
                made.one("ConfigMap", &text(name));
            }
            if let Some(name) = volume.pointer("/secret/secretName") {
                let is_its = |it: &&Value| it["spec"]["secretName"] == *name;
                assert_eq!(
                    made.of("Certificate").into_iter().filter(is_its).count(),
                    1,
                    "{}: {name}",
                    made.name
                );
            }
        }
        let names: Vec<_> = list(&pod["spec"]["volumes"]).iter().map(|it| text(&it["name"])).collect();
        for container in list(&pod["spec"]["containers"]).iter().chain(list(&pod["spec"]["initContainers"])) {
            for mount in list(&container["volumeMounts"]) {
                assert!(names.contains(&text(&mount["name"])), "{}: {mount}", made.name);
            }
        }
    }
    for service in made.of("Service") {
        let selector = json!({"matchLabels": service["spec"]["selector"]});
        let selected: Vec<_> =
            pods.values().filter(|it| matches(&selector, &labels(&it["metadata"]["labels"]))).collect();
        assert_eq!(selected.len(), 1, "{}: {}", made.name, service["metadata"]["name"]);
        let ports = list(&selected[0]["spec"]["containers"][0]["ports"]);
        for port in list(&service["spec"]["ports"]) {
            assert!(ports.iter().any(|it| it["name"] == port["targetPort"]), "{port}");
        }
    }
    for kind in ["Deployment", "DaemonSet"] {
        for workload in made.of(kind) {
            let own = labels(&workload["spec"]["template"]["metadata"]["labels"]);
            assert!(matches(&workload["spec"]["selector"], &own));
        }
    }
    for kind in ["PodDisruptionBudget", "PodMonitor"] {
        for object in made.of(kind) {
            let selects =
                |it: &&Value| matches(&object["spec"]["selector"], &labels(&it["metadata"]["labels"]));
            assert_eq!(pods.values().filter(selects).count(), 1, "{}: {kind}", made.name);
        }
    }
    for rule in made.of("DestinationRule") {
        made.one("Service", &text(&rule["spec"]["host"]));
    }
}

#[test]
fn accounts_read_pods_and_pools_and_nothing_else() {
    for made in everything() {
        assert!(made.of("ClusterRole").is_empty() && made.of("ClusterRoleBinding").is_empty());
        for role in made.of("Role") {
            for rule in list(&role["rules"]) {
                let what = (&rule["apiGroups"], &rule["resources"]);
                let pods = (&json!([""]), &json!(["pods"]));
                let pools = (&json!(["inference.networking.k8s.io"]), &json!(["inferencepools"]));
                assert!(what == pods || what == pools, "{}: {rule}", made.name);
                assert_eq!(rule["verbs"], json!(["get", "list", "watch"]));
            }
        }
        // Pools are read only where one is configured.
        let config = made.config(&made.pods()["kvpick"], "kvpick.yaml");
        let has_pool = text(&json!(config)).lines().any(|it| it.trim_start().starts_with("pool:"));
        let reads_pools = made.of("Role").iter().any(|it| it.to_string().contains("inferencepools"));
        assert_eq!(reads_pools, has_pool, "{}", made.name);

        let mut bound = Vec::new();
        for binding in made.of("RoleBinding") {
            let role = text(&binding["roleRef"]["name"]);
            assert_eq!(made.one("Role", &role)["metadata"]["namespace"], binding["metadata"]["namespace"]);
            for subject in list(&binding["subjects"]) {
                let account = made.one("ServiceAccount", &text(&subject["name"]));
                assert_eq!(subject["namespace"], account["metadata"]["namespace"], "{}", made.name);
                bound.push((role.clone(), text(&subject["name"])));
            }
        }
        bound.sort();
        let expected =
            [("kvpick-agents", "kvpick"), ("kvpick-engines", "kvpick"), ("kvpick-engines", "kvpick-agent")];
        assert_eq!(
            bound,
            expected.map(|(role, account)| (role.to_owned(), account.to_owned())),
            "{}",
            made.name
        );
    }
}

/// Who is about: (name, pod).
fn people(made: &Made, engines: &str) -> Vec<(&'static str, Pod)> {
    vec![
        ("gateway", Pod::new("gateways", &[("kvpick-gateway", "true")], &[("app", "envoy")])),
        ("prometheus", Pod::new("monitoring", &[("kvpick-monitoring", "true")], &[("app", "prometheus")])),
        ("neighbour", Pod::new(NAMESPACE, &[], &[("app", "other")])),
        (
            "stranger",
            Pod::new(
                "elsewhere",
                &[],
                &[("app.kubernetes.io/name", "kvpick-agent"), ("app.kubernetes.io/instance", "kvpick")],
            ),
        ),
        ("server", Pod::made(made, "kvpick")),
        ("agent", Pod::made(made, "kvpick-agent")),
        ("engine", Pod::new(engines, &[], &[("app", "vllm")])),
    ]
}

/// Those who reach a port of one of them.
fn who_reaches(made: &Made, engines: &str, to: &str, port: u16) -> Vec<&'static str> {
    let people = people(made, engines);
    let (_, target) = people.iter().find(|(name, _)| *name == to).unwrap();
    let others = people.iter().filter(|(name, from)| *name != to && reaches(made, from, target, port));
    others.map(|(name, _)| *name).collect()
}

#[test]
fn each_port_is_reached_by_whom_it_is_for() {
    let elsewhere = ["engines.namespace=\"engines\""];
    for (made, engines) in
        [(base_with(&[]), NAMESPACE), (chart(&[]), NAMESPACE), (chart(&elsewhere), "engines")]
    {
        let who = |to, port| who_reaches(&made, engines, to, port);
        let nobody: [&str; 0] = [];
        assert_eq!(who("server", 9002), ["gateway"], "{}", made.name);
        assert_eq!(who("server", 9003), nobody);
        assert_eq!(who("server", 9004), ["agent"]);
        assert_eq!(who("server", 9090), nobody);
        assert_eq!(who("agent", 9005), nobody);
        for port in [5557, 5558, 5565, 5572] {
            assert_eq!(who("engine", port), ["agent"]);
        }
        let all = ["gateway", "prometheus", "neighbour", "stranger", "server", "agent"];
        assert_eq!(who("engine", 8000), all);
        // Ranks and nodes of engines find each other on any port.
        assert_eq!(who("engine", 29_500), ["gateway", "prometheus", "neighbour", "stranger", "agent"]);

        let people = people(&made, engines);
        for (name, pod) in &people {
            let confined = ["server", "agent"].contains(name);
            assert!(reaches_outside(&made, pod, 443), "{name}");
            assert_eq!(!reaches_outside(&made, pod, 80), confined, "{name}");
        }
        let dns = Pod::new("kube-system", &[], &[("k8s-app", "kube-dns")]);
        assert!(people.iter().all(|(_, pod)| reaches(&made, pod, &dns, 53)));
    }
}

#[test]
fn components_open_what_they_say_and_no_more() {
    let monitored = base_with(&["monitoring"]);
    assert_eq!(who_reaches(&monitored, NAMESPACE, "server", 9090), ["prometheus"]);
    assert_eq!(who_reaches(&monitored, NAMESPACE, "agent", 9005), ["prometheus"]);
    assert_eq!(who_reaches(&monitored, NAMESPACE, "server", 9002), ["gateway"]);
    let pool = with("overlays/inferencepool", &["monitoring", "restricted"]);
    assert_eq!(who_reaches(&pool, NAMESPACE, "server", 9004), ["agent"]);
}
