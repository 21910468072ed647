//! Small templates against what Python's Jinja prints.

mod prompts_letters;

use std::{fs, io::Read, path::PathBuf, sync::Arc};

use flate2::read::GzDecoder;
use kvpick_core::{
    prompts::{LocalTime, PromptError, Settings},
    request::{Api, Request},
};
use serde_json::{Value, json};

/// Templates that print something else here, or nothing at all, and why.
const EXCEPT: [(&str, &str); 17] = [
    ("{{ d.keys() }}", "views of dictionaries print as lists"),
    ("{{ range(3) }}", "ranges print as lists"),
    ("{% set ns = namespace() %}{% set ns.x = 'a' %}{{ ns }}", "namespaces print as dictionaries"),
    ("{% macro r(n) %}{% endmacro %}{{ r.arguments }}", "a macro's names are a list and no tuple"),
    ("{{ ['<']|map('e')|list }}", "text that is escaped prints as text"),
    ("{{ d|attr('b') is defined }}", "attr finds items too"),
    ("{% set fmt = '<%s>' %}{{ fmt % 'x' }}", "refused: only a literal before % is a format"),
    ("{{ '%d' % 3.7 }}", "refused: no float as an integer"),
    ("{{ '%r' % s }}", "refused"),
    ("{{ '{!r}'.format('a') }}", "refused"),
    ("{{ 'a'|pprint }}", "refused"),
    ("{{ {'a':1}|xmlattr }}", "refused"),
    ("{{ +3 }}", "refused"),
    ("{{ s.casefold() }}", "refused"),
    ("{{ s.startswith('W', 6) }}", "refused"),
    ("{{ 'Ab'.istitle() }}", "refused"),
    ("{{ fl.is_integer() }}", "refused"),
];

#[test]
fn templates_print_what_jinja_prints() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/prompts/jinja.jsonl.gz");
    let file = fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).expect("gzip of UTF-8");
    let mut lines = text.lines();
    // As text, since a parser on the way would lose the digits of large numbers.
    let variables = lines.next().and_then(|line| line.strip_prefix("{\"variables\": ")).expect("variables");
    let variables = variables.strip_suffix('}').expect("an object");
    let clock = || LocalTime { year: 2026, month: 11, day: 30, hour: 12, minute: 0, second: 0 };
    let settings =
        Settings { trust_request_chat_template: true, clock: Some(Arc::new(clock)), ..Settings::default() };
    let prompter = prompts_letters::letters("", settings);
    let messages = json!([
        {"role": "system", "content": "sys"}, {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi there"}, {"role": "user", "content": "bye"},
    ]);
    let (mut wrong, mut count) = (Vec::new(), 0);
    for line in lines {
        let case: Value = serde_json::from_str(line).expect("a line of JSON");
        let template = case["template"].as_str().expect("a template");
        let body = format!(
            r#"{{"messages":{messages},"chat_template":{},"chat_template_kwargs":{variables}}}"#,
            case["template"]
        );
        let request = Request::parse(Api::ChatCompletions, body.as_bytes()).expect("a chat");
        let got = match prompter.token_ids(&request) {
            Ok(prompts) => prompter.decode(&prompts[0]),
            Err(PromptError::Empty) => String::new(),
            Err(error) => error.to_string(),
        };
        let excepted = EXCEPT.iter().any(|(it, _)| *it == template);
        if (got == case["text"]) == excepted {
            wrong.push(format!("{template}\n  got  {got:?}\n  want {:?}", case["text"]));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 100, "only {count} templates");
}
