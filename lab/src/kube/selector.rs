//! Label and field selectors, as queries have them.

use serde_json::Value;

/// Whether an object has what `labels` and `fields` ask for; both may be empty.
///
/// # Errors
/// A selector that this server does not know: `in` and `notin`, and other fields than a name and a node's.
pub(super) fn matches(object: &Value, labels: &str, fields: &str) -> Result<bool, String> {
    let mut all = true;
    for part in labels.split(',').filter(|it| !it.is_empty()) {
        if part.contains(['(', ' ']) {
            return Err(format!("labelSelector: {part} is not known here"));
        }
        let value = |key: &str| object["metadata"]["labels"][key].as_str();
        all &= match (part.split_once("!="), part.split_once('='), part.strip_prefix('!')) {
            (Some((key, other)), _, _) => value(key) != Some(other),
            (None, Some((key, want)), _) => value(key) == Some(want.trim_start_matches('=')),
            (None, None, Some(key)) => value(key).is_none(),
            (None, None, None) => value(part).is_some(),
        };
    }
    for part in fields.split(',').filter(|it| !it.is_empty()) {
        let (field, want) =
            part.split_once('=').ok_or_else(|| format!("fieldSelector: {part} makes no sense"))?;
        let value = match field {
            "metadata.name" => &object["metadata"]["name"],
            "spec.nodeName" => &object["spec"]["nodeName"],
            _ => return Err(format!("fieldSelector: {field} is not known here")),
        };
        all &= value.as_str().unwrap_or_default() == want;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_are_those_of_the_api() {
        let pod = json!({"metadata": {"name": "p", "labels": {"app": "vllm", "tier": "gpu"}}, "spec": {"nodeName": "n"}});
        for (labels, fields, want) in [
            ("", "", true),
            ("app=vllm,tier==gpu", "spec.nodeName=n", true),
            ("app=other", "", false),
            ("app!=other,!absent,tier", "", true),
            ("app!=vllm", "", false),
            ("!app", "", false),
            ("absent", "", false),
            ("", "metadata.name=p", true),
            ("", "metadata.name=q", false),
        ] {
            assert_eq!(matches(&pod, labels, fields), Ok(want), "{labels} {fields}");
        }
        assert!(
            matches(&pod, "app in (a,b)", "").is_err() && matches(&pod, "", "status.phase=Running").is_err()
        );
    }
}
