//! Dockerfiles and the manifests that run what they make.

use std::path::{Path, PathBuf};

use crate::made::{base_with, list};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(repository().join(name)).unwrap()
}

/// What stands behind a word at the beginning of a line.
fn after<'a>(text: &'a str, word: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(word));
    line.unwrap_or_else(|| panic!("no line begins with {word:?}")).trim()
}

#[test]
fn images_run_as_the_user_and_on_the_ports_of_the_manifests() {
    let base = base_with(&[]);
    for (pod, folder) in [("kvpick", "ext-proc"), ("kvpick-agent", "agent")] {
        let (pod, file) = (&base.pods()[pod], read(&format!("{folder}/Dockerfile")));
        let security = &pod["spec"]["securityContext"];
        let user = format!("{}:{}", security["runAsUser"], security["runAsGroup"]);
        assert_eq!(after(&file, "USER "), user);
        let ports = list(&pod["spec"]["containers"][0]["ports"]);
        let ports: Vec<_> = ports.iter().map(|it| it["containerPort"].to_string()).collect();
        assert_eq!(after(&file, "EXPOSE "), ports.join(" "));
        assert_eq!(pod["spec"]["containers"][0]["args"][0], "run");
        assert_eq!(pod["spec"]["containers"][0].get("command"), None, "the image's entry point counts");
    }
}

#[test]
fn images_are_built_with_the_toolchain_of_the_repository() {
    let toolchain = read("rust-toolchain.toml");
    let channel = after(&toolchain, "channel = ").trim_matches('"');
    for folder in ["ext-proc", "agent"] {
        let file = read(&format!("{folder}/Dockerfile"));
        assert_eq!(after(&file, "ENV RUSTUP_TOOLCHAIN="), channel);
        assert!(after(&file, "ARG RUST=").starts_with(&format!("rust:{channel}-")));
    }
}

#[test]
fn images_get_every_member_of_the_workspace() {
    let manifest = read("Cargo.toml");
    let members = after(&manifest, "members = ");
    let members: Vec<String> = serde_json::from_str(members).unwrap();
    for folder in ["ext-proc", "agent"] {
        let ignored = read(&format!("{folder}/Dockerfile.dockerignore"));
        let let_in: Vec<_> = ignored.lines().filter_map(|it| it.strip_prefix('!')).map(Path::new).collect();
        for file in ["Cargo.toml", "Cargo.lock"] {
            assert!(let_in.contains(&Path::new(file)));
        }
        for member in &members {
            // Cargo does not read a manifest that names a file which is not there.
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(member);
            for part in ["Cargo.toml", "src", "benches", "examples"] {
                if !root.join(part).exists() {
                    continue;
                }
                let path = Path::new(member).join(part);
                assert!(
                    let_in.iter().any(|it| path.starts_with(it)),
                    "{folder}: {} is left out",
                    path.display()
                );
            }
        }
    }
}
