//! Waiting for a state, never for a time.

use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;

/// Long enough for anything that should happen at all, on a machine that is busy with other things.
pub const LONG: Duration = Duration::from_secs(60);

/// Between two looks: short beside what is waited for, long beside a look.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks again and again until `look` gives a value, and fails after `timeout` with `what` was waited for and
/// the last state that `look` described.
///
/// ```
/// # use kvpick_lab::rig::wait;
/// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
/// let mut looks = 0;
/// let seen = wait::until("the third look", wait::LONG, async || {
///     looks += 1;
///     if looks == 3 { Ok(looks) } else { Err(format!("look {looks}")) }
/// });
/// assert_eq!(seen.await.expect("it comes"), 3);
/// # });
/// ```
pub async fn until<T>(
    what: &str,
    timeout: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + timeout;
    let mut last = "nothing was seen yet".to_owned();
    loop {
        match tokio::time::timeout_at(deadline, look()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(state)) => last = state,
            Err(_) => last = format!("{last} (and the last look did not end)"),
        }
        if deadline <= Instant::now() {
            bail!("waited {timeout:?} in vain for {what}; last seen: {last}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failure_shows_the_last_state() {
        let mut looks = 0;
        let error = until("rain", Duration::from_millis(20), async || {
            looks += 1;
            Err::<(), _>(format!("sunshine {looks}"))
        });
        let error = error.await.unwrap_err().to_string();
        assert!(error.contains("rain") && error.contains(&format!("sunshine {looks}")), "{error}");
    }

    #[tokio::test]
    async fn a_look_that_hangs_is_cut_off() {
        let error = until("an answer", Duration::from_millis(20), std::future::pending::<Result<(), String>>);
        assert!(error.await.unwrap_err().to_string().contains("did not end"));
    }
}
