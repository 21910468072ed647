//! The time of day where an engine runs.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use kvpick_core::prompts::LocalTime;

/// A clock that is `minutes` ahead of UTC.
pub(crate) fn ahead_of_utc(minutes: i32) -> Arc<dyn Fn() -> LocalTime + Send + Sync> {
    Arc::new(move || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or_default();
        local_time(seconds + i64::from(minutes) * 60)
    })
}

/// That time in UTC, as `2026-01-31T23:59:59Z`.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let LocalTime { year, month, day, hour, minute, second } =
        local_time(i64::try_from(since.as_secs()).unwrap_or_default());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The date and time of day so many seconds after the start of 1970.
fn local_time(seconds: i64) -> LocalTime {
    let seconds = seconds.max(0);
    let (mut day, of_day) = (seconds / DAY, seconds % DAY);
    let mut year = 1970;
    while day >= days_in(year) {
        day -= days_in(year);
        year += 1;
    }
    let february = days_in(year) - 337;
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    let small = |number: i64| u8::try_from(number).unwrap_or_default();
    LocalTime {
        year,
        month,
        day: small(day + 1),
        hour: small(of_day / 3_600),
        minute: small(of_day / 60 % 60),
        second: small(of_day % 60),
    }
}

const DAY: i64 = 86_400;

fn days_in(year: i32) -> i64 {
    if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_dates() {
        for (seconds, want) in [
            (0, (1970, 1, 1, 0, 0, 0)),
            (951_782_400, (2000, 2, 29, 0, 0, 0)),
            (951_868_800, (2000, 3, 1, 0, 0, 0)),
            (1_767_225_599, (2025, 12, 31, 23, 59, 59)),
            (1_767_225_600, (2026, 1, 1, 0, 0, 0)),
            (1_796_083_199, (2026, 11, 30, 23, 59, 59)),
            (4_107_542_400, (2100, 3, 1, 0, 0, 0)),
        ] {
            let LocalTime { year, month, day, hour, minute, second } = local_time(seconds);
            assert_eq!((year, month, day, hour, minute, second), want, "{seconds}");
        }
    }

    #[test]
    fn the_clock_is_ahead_as_told() {
        let (ahead, behind) = (ahead_of_utc(24 * 60)(), ahead_of_utc(-24 * 60)());
        assert_ne!((ahead.month, ahead.day), (behind.month, behind.day));
    }
}
