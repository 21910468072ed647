//! The fuzz targets' checks, on the corpus that is kept and on each of its files cut short.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may panic, and reads a corpus")]

#[path = "../fuzz/checks.rs"]
mod checks;

fn run(target: &str, check: fn(&[u8])) {
    let folder = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        check(&bytes);
        for len in (0..bytes.len()).step_by(bytes.len() / 64 + 1) {
            check(&bytes[..len]);
        }
        files += 1;
    }
    assert!(files >= 4, "only {files} in the corpus of {target}");
}

#[test]
fn decode() {
    run("decode", checks::decode);
}

#[test]
fn replayed() {
    run("replayed", checks::replayed);
}

#[test]
fn engine() {
    run("engine", checks::engine);
}
