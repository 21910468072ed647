//! Where the programs and the fetched tools are.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// Envoy's binary, from `make tools`.
pub fn envoy() -> anyhow::Result<PathBuf> {
    fetched("envoy")
}

/// The oldest Envoy that is tested, from `make tools`.
pub fn oldest_envoy() -> anyhow::Result<PathBuf> {
    fetched("envoy-1.36")
}

/// A folder with a real `tokenizer.json` and `tokenizer_config.json`, from `make tools`.
pub fn tokenizer() -> anyhow::Result<PathBuf> {
    fetched("tokenizers/qwen3")
}

/// kubectl, whose `kustomize` makes the objects of `envoy/kubernetes`, from `make tools`. On Linux x86-64 only.
pub fn kubectl() -> anyhow::Result<PathBuf> {
    fetched("kubectl")
}

/// Helm, from `make tools`. On Linux x86-64 only.
pub fn helm() -> anyhow::Result<PathBuf> {
    fetched("helm")
}

/// The schemas of Kubernetes' own objects in a version (`v1.31`, the oldest that the manifests are for, or `v1.37`), without
/// unknown fields: a file with all of them under `$defs`. From `make tools`.
pub fn kubernetes_schemas(version: &str) -> anyhow::Result<PathBuf> {
    fetched(&format!("kubernetes/{version}.json"))
}

/// One of our own programs, `kvpick`, `kvpick-agent` or `kvpick-lab`, as built with the running one.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = profile_folder()?.join(name);
    if !path.is_file() {
        bail!("{} is missing: run `make build`", path.display());
    }
    Ok(path)
}

fn fetched(name: &str) -> anyhow::Result<PathBuf> {
    let folder = profile_folder()?;
    // Above `target/<profile>`, or `target/<platform>/<profile>`.
    let found = folder.ancestors().skip(1).take(2).map(|above| above.join("tools").join(name));
    match found.into_iter().find(|path| path.exists()) {
        Some(path) => Ok(path),
        None => bail!("target/tools/{name} is missing: run `make tools`"),
    }
}

/// The folder that Cargo puts programs in: that of the running one, or above it for a test.
pub(super) fn profile_folder() -> anyhow::Result<PathBuf> {
    let running = std::env::current_exe().context("cannot tell where this program is")?;
    let folder = running.parent().unwrap_or_else(|| Path::new("."));
    let tests = ["deps", "examples"].iter().any(|name| folder.ends_with(name));
    Ok(if tests { folder.parent().unwrap_or(folder) } else { folder }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_names_the_command_that_makes_it() {
        assert!(program("kvpick-nothing").unwrap_err().to_string().contains("make build"));
        assert!(fetched("nothing").unwrap_err().to_string().contains("make tools"));
    }

    #[test]
    fn the_fetched_tools_are_found() {
        assert!(envoy().unwrap().is_file());
        assert!(tokenizer().unwrap().join("tokenizer.json").is_file());
    }
}
