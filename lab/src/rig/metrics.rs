//! Numbers out of a Prometheus page.

use std::collections::BTreeMap;

/// The samples of one page, as they were when it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    /// Reads a page in Prometheus' text format. Lines that are no samples are passed over.
    #[must_use]
    pub fn parse(page: &str) -> Self {
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        Self { samples: lines.filter_map(sample).collect() }
    }

    /// The sum of all samples called `name` (as on the page, so with `_total` or `_count`) that carry all of
    /// `labels`; 0 when there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |sample: &&Sample| {
            labels.iter().all(|(label, value)| sample.labels.get(*label).is_some_and(|has| has == value))
        };
        self.samples.iter().filter(|sample| sample.name == name).filter(carries).map(|s| s.value).sum()
    }

    /// The samples called `name`, summed by the value of `label`.
    #[must_use]
    pub fn by(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.samples.iter().filter(|sample| sample.name == name) {
            let value = sample.labels.get(label).cloned().unwrap_or_default();
            *sums.entry(value).or_insert(0.0) += sample.value;
        }
        sums
    }

    /// Whether there is a sample called `name`, whatever its value.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.samples.iter().any(|sample| sample.name == name)
    }
}

/// `name{label="value",...} number`, with an optional timestamp after it.
fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => labels(inner)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (label, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.insert(label.trim().to_owned(), value);
        rest = &quoted[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_name_and_label() {
        let metrics = Metrics::parse(
            "# HELP picks_total Picks.\n# TYPE picks_total counter\n\
             picks_total{tier=\"precise\",replica=\"127.0.0.1:8000\"} 3\n\
             picks_total{tier=\"precise\",replica=\"127.0.0.1:8001\"} 4\n\
             picks_total{tier=\"load\",replica=\"a \\\"b\\\" {c}, d\"} 5 1700000000\n\
             up 1\nnonsense\nratio +Inf\n",
        );
        assert_eq!(metrics.sum("picks_total", &[]), 12.0);
        assert_eq!(metrics.sum("picks_total", &[("tier", "precise")]), 7.0);
        assert_eq!(metrics.sum("picks_total", &[("replica", "a \"b\" {c}, d")]), 5.0);
        assert_eq!(metrics.sum("picks_total", &[("tier", "precise"), ("replica", "127.0.0.1:8001")]), 4.0);
        assert_eq!(metrics.sum("up", &[]), 1.0);
        assert_eq!(metrics.sum("down", &[]), 0.0);
        assert!(metrics.sum("ratio", &[]).is_infinite());
        assert!(metrics.has("up") && !metrics.has("down"));
        let by = metrics.by("picks_total", "tier");
        assert_eq!(by, BTreeMap::from([("precise".to_owned(), 7.0), ("load".to_owned(), 5.0)]));
    }
}
