//! x
#[test] fn a(){ let _ = jsonschema::is_valid(&serde_json::json!({}), &serde_json::json!({})); }
