//! Every header that kvpick sets or removes passes the mutation rules of every Envoy configuration that is shipped.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

use kvpick_core::reply::{ANSWERED, REMOVED, REMOVED_PREFIX, SET};
use regex::Regex;

fn yaml_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            yaml_files(&path, found);
        } else if path.extension().is_some_and(|it| it == "yaml") {
            found.push(path);
        }
    }
}

/// The expressions that let headers through, each with the line that it is on.
fn expressions(text: &str) -> Vec<Regex> {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let after = |i: &usize| lines[*i].starts_with("allow_expression:");
    let regex = |i: usize| {
        let all = lines[i..].iter().take(3).find_map(|it| it.split_once("regex:"));
        let quoted = all.unwrap().1.trim().trim_end_matches('}').trim();
        Regex::new(quoted.trim_matches(['"', '\''])).unwrap()
    };
    (0..lines.len()).filter(after).map(regex).collect()
}

#[test]
fn every_header_passes_every_rule() {
    let envoy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy");
    let mut files = Vec::new();
    yaml_files(&envoy, &mut files);
    let ours = format!("{REMOVED_PREFIX}anything");
    let names = || REMOVED.iter().chain(&SET).chain(&ANSWERED).map(|it| it.0).chain([ours.as_str()]);
    let mut seen = 0;
    for file in files {
        for rule in expressions(&std::fs::read_to_string(&file).unwrap()) {
            seen += 1;
            for name in names() {
                assert!(rule.is_match(name), "{}: {name} is not let through", file.display());
                assert!(
                    !rule.is_match(&format!("{name}\n")) && !rule.is_match(&format!("a{name}")),
                    "it is anchored"
                );
            }
            for other in ["host", ":path", "authorization", "x-request-id", "x-envoy-retry-on"] {
                assert!(!rule.is_match(other), "{}: {other} is let through", file.display());
            }
        }
    }
    assert!(2 <= seen, "the rules are not where they were");
}
