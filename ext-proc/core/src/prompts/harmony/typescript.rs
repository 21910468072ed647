//! Functions as Harmony shows them to the model: declarations that look like TypeScript.
//!
//! The printer knows only some words of JSON schema and has its own ways with them; all of it is in the prompt, so
//! all of it is kept. `$ref`, `anyOf`, `allOf`, bounds and patterns are not printed.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::{bad, numbers, preamble::Function};
use crate::{
    prompts::{PromptError, python::dumps::dumps},
    request::json::{Json, Object},
};

/// Most bytes printed for all functions of a request: lines deep in a schema are indented, so that a small schema can
/// become a large text.
const MAX_BYTES: usize = 16 << 20;

/// Levels of a schema that the renderer's own parser takes; it starts ten levels above.
const MAX_DEPTH: usize = 118;

/// The section that declares `functions`.
pub(super) fn functions(functions: &[Function<'_>]) -> Result<String, PromptError> {
    let mut out = String::from("# Tools\n\n## functions\n\nnamespace functions {\n\n");
    for function in functions {
        for line in function.description.lines() {
            _ = writeln!(out, "// {line}");
        }
        _ = write!(out, "type {} = (", function.name);
        if let Some(parameters) = function.parameters {
            out.push_str("_: ");
            let mut printer = Printer { out, is_full: false };
            printer.write(&as_renderer_reads(parameters)?, "");
            if printer.is_full {
                return Err(bad("tools", "their description gets too large"));
            }
            out = printer.out;
        }
        out.push_str(") => any;\n\n");
    }
    out.push_str("} // namespace functions");
    Ok(out)
}

/// What becomes of a schema on its way: Python writes it as text, and a parser reads that which keeps whole numbers of
/// 64 bits only, may miss a float's last digit, and knows neither infinity nor NaN.
fn as_renderer_reads(schema: &Object) -> Result<Value, PromptError> {
    if !schema.values().all(|value| is_within(value, MAX_DEPTH - 1)) {
        return Err(bad("tools", "a schema is nested too deep"));
    }
    let problem = "a number in a schema is not finite";
    let mut read = serde_json::from_str(&dumps(schema)).map_err(|_| bad("tools", problem))?;
    numbers::mend(&mut read, schema);
    Ok(Value::Object(read))
}

/// Whether a value nests no deeper than so many levels.
fn is_within(value: &Json, levels: usize) -> bool {
    match value {
        Json::Array(items) => levels > 0 && items.iter().all(|item| is_within(item, levels - 1)),
        Json::Object(entries) => levels > 0 && entries.values().all(|value| is_within(value, levels - 1)),
        _ => true,
    }
}

struct Printer {
    out: String,
    /// Set once the text is too large; nothing is printed from then on.
    is_full: bool,
}

impl Printer {
    fn write(&mut self, schema: &Value, indent: &str) {
        self.is_full |= self.out.len() > MAX_BYTES;
        if self.is_full {
            return;
        }
        if let Some(variants) = list(schema, "oneOf") {
            for variant in variants {
                self.push(&["\n", indent, " | "]);
                self.write_nullable(variant, &format!("{indent}   "));
                let mut notes: Vec<String> =
                    text(variant, "description").map(str::to_owned).into_iter().collect();
                notes.extend(default(variant, Value::to_string));
                self.write_notes(&notes);
            }
            return;
        }
        if let Some(types) = list(schema, "type") {
            let names: Vec<&str> = types.iter().filter_map(Value::as_str).map(in_typescript).collect();
            if !names.is_empty() {
                self.out += &names.join(" | ");
                return;
            }
        }
        match text(schema, "type") {
            Some("object") => self.write_object(schema, indent),
            Some("string") => self.write_string(schema),
            Some(name @ ("number" | "integer" | "boolean")) => self.out += in_typescript(name),
            Some("array") => match schema.get("items") {
                Some(items) => {
                    self.write(items, indent);
                    self.out += "[]";
                }
                None => self.out += "Array<any>",
            },
            _ => self.out += "any",
        }
    }

    /// A type that may say beside its own words that null is one of its values.
    fn write_nullable(&mut self, schema: &Value, indent: &str) {
        let from = self.out.len();
        self.write(schema, indent);
        let is_nullable = schema.get("nullable").and_then(Value::as_bool) == Some(true);
        if is_nullable && !self.out[from..].contains("null") {
            self.out += " | null";
        }
    }

    fn write_string(&mut self, schema: &Value) {
        let values = list(schema, "enum").unwrap_or_default();
        let values: Vec<String> =
            values.iter().filter_map(Value::as_str).map(|value| format!("\"{value}\"")).collect();
        self.out += &if values.is_empty() { "string".to_owned() } else { values.join(" | ") };
    }

    fn write_object(&mut self, schema: &Value, indent: &str) {
        if let Some(description) = text(schema, "description") {
            self.push(&[indent, "// ", description, "\n"]);
        }
        self.out += "{\n";
        let required: std::collections::BTreeSet<&str> =
            list(schema, "required").into_iter().flatten().filter_map(Value::as_str).collect();
        let empty = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        for (name, property) in properties {
            let mark = if required.contains(name.as_str()) { "" } else { "?" };
            self.write_property(name, mark, property, indent);
            if self.is_full {
                return;
            }
        }
        self.push(&[indent, "}"]);
    }

    fn write_property(&mut self, name: &str, mark: &str, property: &Value, indent: &str) {
        if let Some(title) = text(property, "title") {
            self.push(&[indent, "// ", title, "\n", indent, "//\n"]);
        }
        let description = text(property, "description");
        let has_variants = property.get("oneOf").is_some();
        if let Some(description) = description.filter(|_| !has_variants) {
            self.push(&[indent, "// ", description, "\n"]);
        }
        if let Some(examples) = list(property, "examples").filter(|examples| !examples.is_empty()) {
            self.push(&[indent, "// Examples:\n"]);
            for example in examples.iter().filter_map(Value::as_str) {
                self.push(&[indent, "// - \"", example, "\"\n"]);
            }
        }
        if let Some(variants) = list(property, "oneOf") {
            self.write_variants(name, mark, property, variants, indent);
            return;
        }
        self.push(&[indent, name, mark, ": "]);
        self.write_nullable(property, &format!("{indent}    "));
        self.out.push(',');
        if !has_variants {
            let notes: Vec<String> = default(property, bare).into_iter().collect();
            self.write_notes(&notes);
        }
        self.out.push('\n');
    }

    /// A property that is one of several types, each on a line of its own.
    fn write_variants(&mut self, name: &str, mark: &str, property: &Value, variants: &[Value], indent: &str) {
        let description = text(property, "description");
        let first = variants.first().and_then(|variant| text(variant, "description"));
        let above = description.filter(|description| first != Some(description));
        if let Some(description) = above {
            self.push(&[indent, "// ", description, "\n"]);
        }
        if let Some(default) = default(property, bare) {
            self.push(&[indent, "// ", &default, "\n"]);
        }
        self.push(&[indent, name, mark, ":\n"]);
        for (at, variant) in variants.iter().enumerate() {
            self.push(&[indent, " | "]);
            self.write_nullable(variant, &format!("{indent}   "));
            let own = text(variant, "description");
            let own = own.filter(|own| !(at == 0 && above.is_some()) && description != Some(own));
            let mut notes: Vec<String> = own.map(str::to_owned).into_iter().collect();
            notes.extend(default(variant, bare));
            self.write_notes(&notes);
            self.out.push('\n');
            if self.is_full {
                return;
            }
        }
        self.push(&[indent, ",\n"]);
    }

    /// A comment behind a type.
    fn write_notes(&mut self, notes: &[String]) {
        if !notes.is_empty() {
            self.push(&[" // ", &notes.join(" ")]);
        }
    }

    fn push(&mut self, texts: &[&str]) {
        self.out.extend(texts.iter().copied());
    }
}

/// A schema's default as a comment says it; `among_values` prints one that has a list of values beside it, or is no
/// text.
fn default(schema: &Value, among_values: fn(&Value) -> String) -> Option<String> {
    let default = schema.get("default")?;
    let has_values = list(schema, "enum").is_some_and(|values| !values.is_empty());
    Some(match default.as_str() {
        Some(text) if !has_values => format!("default: \"{text}\""),
        _ => format!("default: {}", among_values(default)),
    })
}

/// A text without quotes, any other value as JSON.
fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn in_typescript(name: &str) -> &str {
    if name == "integer" { "number" } else { name }
}

fn text<'a>(schema: &'a Value, key: &str) -> Option<&'a str> {
    schema.get(key)?.as_str()
}

fn list<'a>(schema: &'a Value, key: &str) -> Option<&'a [Value]> {
    schema.get(key)?.as_array().map(Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::json::parse_text;

    fn printed(schema: &str) -> Result<String, PromptError> {
        let Ok(Json::Object(parameters)) = parse_text(schema) else { panic!("{schema}: no object") };
        let function = Function { name: "f", description: "", parameters: Some(&parameters) };
        let text = functions(&[function])?;
        let (_, text) = text.split_once("type f = (_: ").expect("the function");
        Ok(text.split_once(") => any;\n\n} // namespace").expect("its end").0.to_owned())
    }

    #[test]
    fn types_of_all_forms() {
        for (schema, want) in [
            (r"{}", "any"),
            (r#"{"type":"string"}"#, "string"),
            (r#"{"type":"string","enum":["a",1,"b\"c"]}"#, r#""a" | "b"c""#),
            (r#"{"type":"string","enum":[1]}"#, "string"),
            (r#"{"type":"integer","enum":[1,2]}"#, "number"),
            (r#"{"type":"boolean"}"#, "boolean"),
            (r#"{"type":"null"}"#, "any"),
            (r#"{"type":["integer","null"]}"#, "number | null"),
            (r#"{"type":[],"anyOf":[{"type":"string"}]}"#, "any"),
            (r##"{"$ref":"#/a"}"##, "any"),
            (r#"{"type":"array"}"#, "Array<any>"),
            (r#"{"type":"array","items":{"type":"array","items":{"type":"number"}}}"#, "number[][]"),
            (r#"{"type":"object"}"#, "{\n}"),
            (r#"{"type":"object","description":"d"}"#, "// d\n{\n}"),
            (
                r#"{"oneOf":[{"type":"string","description":"s","default":"x"},{"type":"number","nullable":true}]}"#,
                "\n | string // s default: \"x\"\n | number | null",
            ),
            (
                r#"{"oneOf":[{"type":"string","enum":["x"],"default":"x\n"}]}"#,
                "\n | \"x\" // default: \"x\\n\"",
            ),
            (r#"{"oneOf":"bad","type":"string"}"#, "string"),
        ] {
            assert_eq!(printed(schema).as_deref(), Ok(want), "{schema}");
        }
    }

    #[test]
    fn properties_of_all_forms() {
        for (property, want) in [
            (r#"{"type":"string"}"#, "a?: string,"),
            (r#"{"type":"string","nullable":true}"#, "a?: string | null,"),
            (r#"{"type":["string","null"],"nullable":true}"#, "a?: string | null,"),
            (r#"{"title":"T","description":"D","type":"number"}"#, "// T\n//\n// D\na?: number,"),
            (r#"{"type":"string","default":"x"}"#, "a?: string, // default: \"x\""),
            (r#"{"type":"string","enum":["x"],"default":"x"}"#, "a?: \"x\", // default: x"),
            (r#"{"default":{"k":[1.50,null,"é"]}}"#, "a?: any, // default: {\"k\":[1.5,null,\"é\"]}"),
            (r#"{"examples":["x",1]}"#, "// Examples:\n// - \"x\"\na?: any,"),
            (r#"{"examples":[]}"#, "a?: any,"),
            (r"true", "a?: any,"),
            (
                r#"{"type":"object","properties":{"b":{"type":"object","properties":{"c":{}}}}}"#,
                "a?: {\n    b?: {\n        c?: any,\n        },\n    },",
            ),
            (
                r#"{"description":"D","default":1,"oneOf":[{"type":"string","description":"x"},
                    {"type":"number","description":"y","default":2}]}"#,
                "// D\n// default: 1\na?:\n | string\n | number // y default: 2\n,",
            ),
            (r#"{"description":"D","oneOf":[{"type":"string","description":"D"}]}"#, "a?:\n | string\n,"),
        ] {
            let schema = format!(r#"{{"type":"object","properties":{{"a":{property}}}}}"#);
            assert_eq!(printed(&schema), Ok(format!("{{\n{want}\n}}")), "{schema}");
            let needed = schema.replacen('{', r#"{"required":["a"],"#, 1);
            assert_eq!(printed(&needed), Ok(format!("{{\n{want}\n}}").replace("a?:", "a:")), "{needed}");
        }
    }

    /// The renderer's parser is inexact where it is told nothing else; so is the one that stands for it here.
    #[test]
    fn numbers_are_those_of_the_renderer() {
        for (given, want) in [
            ("7.038531e-26", "7.038530999999999e-26"),
            ("1e16", "1e+16"),
            ("1E5", "100000.0"),
            ("1.5e-5", "0.000015"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("18446744073709551615", "18446744073709551615"),
            ("18446744073709551616", "1.8446744073709552e+19"),
            ("12345678901234567890123", "1.2345678901234568e+22"),
        ] {
            let schema = format!(r#"{{"type":"object","properties":{{"a":{{"default":{given}}}}}}}"#);
            assert_eq!(printed(&schema), Ok(format!("{{\na?: any, // default: {want}\n}}")));
        }
    }

    #[test]
    fn schemas_that_the_renderer_refuses_are_refused() {
        for number in ["NaN", "Infinity", "1e309", &"9".repeat(310)] {
            assert!(printed(&format!(r#"{{"not printed":{number}}}"#)).is_err(), "{number}");
        }
        let nested = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
        assert!(printed(&nested(MAX_DEPTH)).is_ok());
        assert!(printed(&nested(MAX_DEPTH + 1)).is_err());
    }

    #[test]
    fn a_text_that_grows_too_large_is_refused() {
        let wide: Vec<String> = (0..50_000).map(|at| format!(r#""{at}":{{}}"#)).collect();
        let deep = r#"{"type":"object","properties":{"a":"#.repeat(58);
        let schema =
            format!(r#"{deep}{{"type":"object","properties":{{{}}}}}{}"#, wide.join(","), "}}".repeat(58));
        assert!(printed(&schema).is_err());
    }
}
