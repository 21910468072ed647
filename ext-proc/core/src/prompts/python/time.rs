//! `strftime` in the C locale.

use std::fmt::Write;

use crate::prompts::LocalTime;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// `time` in `format`; a directive that is not known stays as it is.
pub(crate) fn strftime(format: &str, time: LocalTime) -> String {
    let mut out = String::with_capacity(format.len() * 2);
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        // glibc's flag for "no leading zero".
        let plain = rest.starts_with('-');
        let Some(directive) = rest[usize::from(plain)..].chars().next() else {
            out.push('%');
            break;
        };
        rest = &rest[usize::from(plain) + directive.len_utf8()..];
        write_directive(&mut out, directive, plain, time);
    }
    out.push_str(rest);
    out
}

fn write_directive(out: &mut String, directive: char, plain: bool, time: LocalTime) {
    let month = MONTHS[usize::from(time.month.clamp(1, 12) - 1)];
    let weekday = weekday(time);
    let day = DAYS[weekday];
    let hour12 = match time.hour % 12 {
        0 => 12,
        hour => hour,
    };
    let mut number = |value: u32, width: usize| {
        let _ = if plain { write!(out, "{value}") } else { write!(out, "{value:0width$}") };
    };
    match directive {
        'd' => number(time.day.into(), 2),
        'm' => number(time.month.into(), 2),
        'H' => number(time.hour.into(), 2),
        'I' => number(hour12.into(), 2),
        'M' => number(time.minute.into(), 2),
        'S' => number(time.second.into(), 2),
        'y' => number(time.year.rem_euclid(100).unsigned_abs(), 2),
        'j' => number(day_of_year(time), 3),
        'e' => _ = write!(out, "{:>2}", time.day),
        'Y' => _ = write!(out, "{}", time.year),
        'B' => out.push_str(month),
        'b' | 'h' => out.push_str(&month[..3]),
        'A' => out.push_str(day),
        'a' => out.push_str(&day[..3]),
        'w' => _ = write!(out, "{weekday}"),
        'u' => _ = write!(out, "{}", if weekday == 0 { 7 } else { weekday }),
        'p' => out.push_str(if time.hour < 12 { "AM" } else { "PM" }),
        'F' => out.push_str(&strftime("%Y-%m-%d", time)),
        'T' | 'X' => out.push_str(&strftime("%H:%M:%S", time)),
        'D' | 'x' => out.push_str(&strftime("%m/%d/%y", time)),
        'R' => out.push_str(&strftime("%H:%M", time)),
        'c' => out.push_str(&strftime("%a %b %e %H:%M:%S %Y", time)),
        'n' => out.push('\n'),
        't' => out.push('\t'),
        '%' => out.push('%'),
        other => {
            out.push('%');
            out.push(other);
        }
    }
}

fn is_leap(year: i32) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn day_of_year(time: LocalTime) -> u32 {
    const BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leap_day = u32::from(time.month > 2 && is_leap(time.year));
    BEFORE[usize::from(time.month.clamp(1, 12) - 1)] + leap_day + u32::from(time.day)
}

/// 0 is Sunday.
fn weekday(time: LocalTime) -> usize {
    // Days since a Sunday: 365 is one more than 52 weeks, and each leap year before this one adds a day.
    let before = i64::from(time.year) - 1;
    let leap_days = before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400);
    let days = before + leap_days + i64::from(day_of_year(time));
    usize::try_from(days.rem_euclid(7)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_c_does() {
        let time = LocalTime { year: 2026, month: 3, day: 4, hour: 13, minute: 5, second: 9 };
        assert_eq!(strftime("%d %b %Y|%A %B|%Y-%m-%d", time), "04 Mar 2026|Wednesday March|2026-03-04");
        assert_eq!(strftime("%H:%M:%S %I %p %j %y %-d %e %%", time), "13:05:09 01 PM 063 26 4  4 %");
        assert_eq!(strftime("%Q %", time), "%Q %");
        let leap = LocalTime { year: 2024, month: 12, day: 31, hour: 0, minute: 0, second: 0 };
        assert_eq!(strftime("%a %j %I %p", leap), "Tue 366 12 AM");
    }
}
