//! What the names of servers stand for, asked again and again.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    io,
    net::SocketAddr,
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet, time::sleep};

/// Names are resolved this often, and after a failure sooner.
const EVERY: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_secs(1);

/// The addresses that each name stood for last.
pub(crate) type Found = BTreeMap<String, BTreeSet<SocketAddr>>;

/// Resolves a name with what the system has for that.
pub(crate) async fn lookup(name: String) -> io::Result<BTreeSet<SocketAddr>> {
    Ok(tokio::net::lookup_host(name).await?.collect())
}

/// Resolves all names for ever, each in a task of its own, as one whose resolver is slow must not delay the others.
pub(crate) async fn resolve<F>(
    names: Vec<String>,
    lookup: impl Fn(String) -> F + Clone + Send + 'static,
    found: watch::Sender<Found>,
) where
    F: Future<Output = io::Result<BTreeSet<SocketAddr>>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for name in names {
        tasks.spawn(one(name, lookup.clone(), found.clone()));
    }
    // None of them ends.
    tasks.join_next().await;
}

async fn one<F>(name: String, lookup: impl Fn(String) -> F, found: watch::Sender<Found>)
where
    F: Future<Output = io::Result<BTreeSet<SocketAddr>>>,
{
    let mut is_failing = false;
    loop {
        match lookup(name.clone()).await {
            Ok(addresses) => {
                is_failing = false;
                found.send_if_modified(|all| {
                    let before = all.insert(name.clone(), addresses);
                    before.as_ref() != all.get(&name)
                });
            }
            // What it stood for last stays.
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(server = name, %error, "a server's name can't be resolved");
                }
            }
        }
        sleep(if is_failing { AGAIN } else { EVERY }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_resolver_delays_no_other_name() {
        let (sender, mut found) = watch::channel(Found::new());
        let address: SocketAddr = "10.0.0.1:9004".parse().unwrap();
        let lookup = move |name: String| async move {
            match name.as_str() {
                "slow" => std::future::pending().await,
                "broken" => Err(io::ErrorKind::NotFound.into()),
                _ => Ok(BTreeSet::from([address])),
            }
        };
        let names = ["slow", "broken", "quick"].map(str::to_owned).to_vec();
        let task = tokio::spawn(resolve(names, lookup, sender));
        let found = tokio::time::timeout(Duration::from_secs(30), found.wait_for(|it| !it.is_empty())).await;
        let found = found.expect("an address").unwrap().clone();
        assert_eq!(found, Found::from([("quick".to_owned(), BTreeSet::from([address]))]));
        task.abort();
    }
}
