//! What requests are for, and which of them give way.

use serde::{Deserialize, Serialize};

use super::Config;

/// Most of them: each is a label in metrics.
const MOST: usize = 256;

/// A name that requests may carry in the header `x-llm-d-inference-objective` or `x-gateway-inference-objective`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveConfig {
    /// The name.
    pub name: String,
    /// Requests of one below 0 are refused with 429 while all replicas are saturated. Those without an objective, and
    /// those of one that is not listed, have 0.
    pub priority: i32,
}

impl Config {
    pub(super) fn objective_mistakes(&self, found: &mut Vec<String>) {
        if MOST < self.objectives.len() {
            let n = self.objectives.len();
            found.push(format!("objectives: {n} are too many; list at most {MOST}, others have priority 0"));
        }
        for (i, objective) in self.objectives.iter().enumerate() {
            let name = &objective.name;
            if name.is_empty() || ["none", "other"].contains(&name.as_str()) {
                found.push(format!(
                    "objectives[{i}].name: {name:?} can't be told from no name; use another one"
                ));
            }
            if self.objectives[..i].iter().any(|it| it.name == *name) {
                found.push(format!("objectives[{i}]: the name {name:?} is given twice; keep one"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_not_too_many() {
        let mistakes = |objectives: &str| {
            let yaml = format!("replicas: [{{address: 127.0.0.1:1, models: [m]}}]\nobjectives: {objectives}");
            kvpick_service::config::parse::<Config>(&yaml).unwrap().mistakes_of_its_own().join("\n")
        };
        assert_eq!(mistakes("[{name: a, priority: -1}, {name: b, priority: 2}]"), "");
        let found = mistakes("[{name: a, priority: 0}, {name: a, priority: 1}, {name: other, priority: 0}]");
        assert!(found.contains("objectives[1]: the name \"a\" is given twice"), "{found}");
        assert!(found.contains("objectives[2].name: \"other\""), "{found}");
        let many: Vec<_> = (0..=MOST).map(|i| format!("{{name: n{i}, priority: 0}}")).collect();
        assert!(mistakes(&format!("[{}]", many.join(", "))).contains("too many"));
    }
}
