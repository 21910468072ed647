//! Structured logs on standard error.

use std::fmt;
use std::str::FromStr;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people: coloured where standard error is a terminal.
    #[default]
    Text,
    /// For collectors: one JSON object a line, the event's fields at its top level.
    Json,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

impl FromStr for Format {
    type Err = LogError;

    fn from_str(word: &str) -> Result<Self, LogError> {
        match word {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(LogError::Format(other.to_owned())),
        }
    }
}

/// Logs in a program's configuration.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// A level (error, warn, info, debug, trace), or a list of `target=level`.
    pub filter: String,
    /// `text` or `json`.
    pub format: Format,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { filter: "info".to_owned(), format: Format::default() }
    }
}

/// Why logs could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter does not parse; nothing was changed.
    #[error(
        "log filter `{filter}`: {reason}; write a level (error, warn, info, debug, trace), or `target=level,...`"
    )]
    Filter {
        /// The text that was given.
        filter: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Neither `text` nor `json`.
    #[error("log format `{0}`: write `text` or `json`")]
    Format(String),
    /// Somebody has set up logs in this process before.
    #[error("logs are already set up in this process")]
    Twice,
    /// The subscriber is gone, so that there is no filter to change.
    #[error("the log filter cannot be changed any more")]
    Gone,
}

/// A handle on the running logs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Logs {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Logs {
    /// Replaces the filter from the next log line on.
    pub fn set(&self, filter: &str) -> Result<(), LogError> {
        self.filter.reload(parse(filter)?).map_err(|_| LogError::Gone)
    }

    /// The filter in force.
    #[must_use]
    pub fn filter(&self) -> String {
        self.filter.with_current(ToString::to_string).unwrap_or_default()
    }
}

/// Sets up the logs of this process: once, before anything else.
///
/// `filter` is a level, or a list of `target=level`, such as `info,kvpick_core=debug`.
pub fn init(filter: &str, format: Format) -> Result<Logs, LogError> {
    let (layer, handle) = reload::Layer::new(parse(filter)?);
    let base = tracing_subscriber::registry().with(layer);
    let fmt = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let done = match format {
        Format::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
            base.with(fmt.with_ansi(colours)).try_init()
        }
        Format::Json => base.with(fmt.json().flatten_event(true)).try_init(),
    };
    done.map_err(|_| LogError::Twice)?;
    Ok(Logs { filter: handle })
}

fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    let filter = filter.trim();
    let refuse = |reason: String| LogError::Filter { filter: filter.to_owned(), reason };
    if filter.is_empty() {
        return Err(refuse("it is empty".to_owned()));
    }
    // A bare word that is no level would be taken for a target and silence everything else.
    for part in filter.split(',') {
        let bare = !part.contains(['=', '[', ':']);
        if bare && part.trim().parse::<tracing_subscriber::filter::LevelFilter>().is_err() {
            return Err(refuse(format!("`{}` is not a level", part.trim())));
        }
    }
    EnvFilter::try_new(filter).map_err(|error| refuse(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // The only test of this crate that sets up logs, as a process can do it only once.
    #[test]
    fn the_filter_can_be_changed_while_running() {
        let logs = init("info", Format::Json).unwrap();
        assert!(!tracing::enabled!(tracing::Level::DEBUG));
        logs.set("info,kvpick_service=debug").unwrap();
        assert!(tracing::enabled!(tracing::Level::DEBUG));
        assert!(logs.filter().contains("kvpick_service=debug"), "{}", logs.filter());

        let error = logs.set("loud").unwrap_err().to_string();
        assert!(error.contains("`loud`"), "{error}");
        assert!(tracing::enabled!(tracing::Level::DEBUG), "a refused filter changes nothing");
        assert!(matches!(init("info", Format::Text), Err(LogError::Twice)));
    }

    #[test]
    fn filters_that_mean_nothing_are_refused() {
        for filter in ["", "  ", "verbose", "info,noisy", "kvpick=loud"] {
            assert!(matches!(parse(filter), Err(LogError::Filter { .. })), "{filter}");
        }
        for filter in ["info", " debug ", "warn,kvpick_core::index=trace", "off"] {
            assert!(parse(filter).is_ok(), "{filter}");
        }
    }

    #[test]
    fn formats_have_a_word() {
        for format in [Format::Text, Format::Json] {
            assert_eq!(format.to_string().parse::<Format>().unwrap(), format);
        }
        assert!("yaml".parse::<Format>().unwrap_err().to_string().contains("yaml"));
    }
}
