//! Runs a workload: every session is a task that thinks, asks and waits for the answer.

use std::{sync::Arc, time::Instant};

use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    client::{Client, Record},
    workload::{Session, Workload},
};

/// Runs the whole workload with at most `concurrency` requests under way, and calls `on_record` after each.
///
/// Returns the records in the order in which the requests ended, and how long it took in seconds. What is sent follows
/// from the workload and the answers; when, from the machine as well.
pub async fn run(
    client: &Client,
    workload: &Workload,
    concurrency: usize,
    on_record: impl Fn(&Record) + Send + Sync + 'static,
) -> (Vec<Record>, f64) {
    let start = Instant::now();
    let under_way = Arc::new(Semaphore::new(concurrency.max(1)));
    let on_record = Arc::new(on_record);
    let mut sessions = JoinSet::new();
    for index in 0..workload.sessions {
        let session = workload.session(index);
        sessions.spawn(converse(
            client.clone(),
            session,
            Arc::clone(&under_way),
            start,
            Arc::clone(&on_record),
        ));
    }
    let mut records: Vec<(f64, Record)> = Vec::new();
    while let Some(done) = sessions.join_next().await {
        match done {
            Ok(ended) => records.extend(ended),
            Err(error) => tracing::error!(%error, "a session broke"),
        }
    }
    records.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    (records.into_iter().map(|(_, record)| record).collect(), start.elapsed().as_secs_f64())
}

/// Returns each request's record with the time of its end in seconds.
async fn converse(
    client: Client,
    mut session: Session,
    under_way: Arc<Semaphore>,
    start: Instant,
    on_record: Arc<impl Fn(&Record)>,
) -> Vec<(f64, Record)> {
    let mut records = Vec::new();
    loop {
        tokio::time::sleep(session.think_time()).await;
        let (index, turn) = (session.index(), session.turn());
        let Some(body) = session.ask() else { return records };
        let Ok(permit) = under_way.acquire().await else { return records };
        let (record, text) = client.chat(&body).await;
        drop(permit);
        let record = Record { session: index, turn, ..record };
        if record.error.is_none() {
            session.answered(&text);
        } else {
            session.failed();
        }
        on_record(&record);
        records.push((start.elapsed().as_secs_f64(), record));
    }
}
