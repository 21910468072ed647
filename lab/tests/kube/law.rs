//! Whatever happens, in the end what is known is what is.

use std::collections::BTreeMap;

use kvpick_lab::{
    kube::{Cluster, Faults, Kind, Refusal},
    rig::wait,
    seeded::Seeded,
};
use serde_json::{Value, json};

use super::{NAMESPACE, selector, shown, started, vllm, with};

#[tokio::test]
async fn after_any_trouble_what_is_known_is_what_is() {
    for seed in 0..6 {
        let cluster = Cluster::start().await.unwrap();
        let mut heard = started(&cluster, selector(), None, 1);
        let mut dice = Seeded::new(&[seed]);
        for _ in 0..200 {
            step(&cluster, &mut dice);
            // Lets what is told and what happens come in any order.
            for _ in 0..dice.below(20) {
                tokio::task::yield_now().await;
            }
        }
        cluster.set_faults(Faults::default());
        let want = truth(&cluster);
        let is_so = |it: &kvpick_kube::State| {
            let found: Option<BTreeMap<_, _>> = it.members.as_ref().map(|it| {
                it.pods.iter().map(|it| (it.uid.clone(), (it.name.clone(), it.is_ready))).collect()
            });
            found.as_ref() == Some(&want)
        };
        if tokio::time::timeout(wait::LONG, heard.wait_for(is_so)).await.is_err() {
            panic!("seed {seed}: {:?}, not {want:?}", shown(&heard.borrow()));
        }
    }
}

fn step(cluster: &Cluster, dice: &mut Seeded) {
    let n = dice.below(6);
    let name = format!("p{n}");
    match dice.below(20) {
        0..8 => {
            let ready = if dice.below(3) == 0 { "False" } else { "True" };
            let pod = vllm(&name, &format!("10.0.0.{}", 1 + dice.below(4)));
            cluster.apply(Kind::Pod, with(pod, "/status/conditions/0/status", json!(ready)));
        }
        8 => cluster.apply(Kind::Pod, with(vllm(&name, "10.0.0.7"), "/metadata/labels/app", json!("aside"))),
        9..13 => drop(cluster.delete(Kind::Pod, NAMESPACE, &name)),
        13 => cluster.restart(),
        14 => cluster.compact(),
        15 => cluster.set_faults(Faults { gone_once: true, twice: true, ..Faults::default() }),
        16 => cluster.set_faults(Faults { cut_once: true, no_bookmarks: true, ..Faults::default() }),
        17 => cluster.set_faults(Faults { silent: true, ..Faults::default() }),
        18 => cluster.set_faults(Faults { refuse: Some(Refusal::Internal), ..Faults::default() }),
        _ => cluster.set_faults(Faults::default()),
    }
}

/// Name and readiness of each pod that has the label, by uid.
fn truth(cluster: &Cluster) -> BTreeMap<String, (String, bool)> {
    let text = |it: &Value| it.as_str().unwrap().to_owned();
    let pods = cluster.objects(Kind::Pod).into_iter().filter(|it| it["metadata"]["labels"]["app"] == "vllm");
    pods.map(|it| {
        let is_ready = it["status"]["conditions"][0]["status"] == "True";
        (text(&it["metadata"]["uid"]), (text(&it["metadata"]["name"]), is_ready))
    })
    .collect()
}
