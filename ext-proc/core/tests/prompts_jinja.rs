//! Small templates against what Python's Jinja prints.

mod prompts_letters;

use std::{fs, io::Read, path::PathBuf, sync::Arc};

use flate2::read::GzDecoder;
use kvpick_core::{
    prompts::{LocalTime, PromptError, Settings},
    request::{Api, Request},
};
use serde_json::{Value, json};

/// Templates that are refused here, and why.
const REFUSED: [(&str, &str); 39] = [
    (r#"{{ "abc"|random }}"#, "a random choice"),
    ("{{ s.encode() }}", "bytes"),
    ("{{ s.translate({97: 98}) }}", "no tables of letters"),
    ("{{ 'a'.maketrans('a', 'b') }}", "no tables of letters"),
    ("{{ i.bit_length() }}", "no bits"),
    ("{{ fl.as_integer_ratio() }}", "no fractions"),
    ("{{ self }}", "no blocks of templates"),
    ("{{ 'see http://a.example'|urlize }}", "no links"),
    ("{{ huge + 1 }}", "no sums beyond 128 bits"),
    ("{{ 1 < huge }}", "no order beyond 128 bits"),
    ("{{ 2 ** 200 }}", "no sums beyond 128 bits"),
    ("{{ big / 7 }}", "quotients beyond 53 bits are rounded twice"),
    ("{{ (neg + 0) ** 2 }}", "the sign may be taken after the power"),
    ("{{ neg ** 0.5 }}", "complex numbers"),
    ("{% autoescape true %}{{ '<' }}{% endautoescape %}", "no escaping by itself"),
    (
        "{% macro m() %}{{ varargs }}{% endmacro %}{% set f = m %}{{ f(1) }}",
        "no second name for such a macro",
    ),
    ("{% macro m() %}{{ varargs }}{% endmacro %}{{ m(*l) }}", "what is unpacked for such a macro"),
    ("{% macro m(a) %}{{ kwargs }}{% endmacro %}{{ m(**d) }}", "what is unpacked for such a macro"),
    ("{% macro m(kwargs) %}{{ kwargs }}{% endmacro %}{{ m(1) }}", "a parameter of that name"),
    ("{% for x in l %}{% block b %}{{ x }}{% endblock %}{% endfor %}", "a block sees no more than the top"),
    (
        "{% macro m() %}{% block b %}x{% endblock %}{% endmacro %}{{ m() }}",
        "a block sees no more than the top",
    ),
    ("{% block b scoped %}x{% endblock %}", "scoped blocks"),
    (
        "{% macro m(a=1) %}{{ a is defined }}{% endmacro %}{{ m(nope) }}",
        "an undefined value would be taken for none given",
    ),
    (
        "{% for x in [[1]] recursive %}{% for y in x %}{{ loop.depth }}{% endfor %}{% endfor %}",
        "loops in a recursive one are counted from it",
    ),
    ("{% set ns = namespace(b=1, a=2) %}{{ ns }}", "the order of a namespace is not kept"),
    ("{{ ('<%s>'|safe) % '&' }}", "no formats that escape"),
    ("{{ (', '|safe).join(['<']) }}", "no joining that escapes"),
    ("{{ 'ŉa'.title() }}", "no title case of such letters"),
    ("{{ 'ß'.casefold() }}", "no folding of such letters"),
    ("{{ '一'.isnumeric() }}", "no numbers written in letters"),
    ("{{ '{0.real}'.format(5) }}", "no attributes in formats"),
    ("{{ '%#g' % 2.5 }}", "no alternate form of floats"),
    ("{{ [0.1, 0.2, 0.3]|sum }}", "sums that versions of Python round differently"),
    ("{{ 'a-b c'|wordwrap(2) }}", "no breaks at hyphens"),
    ("{{ ['a' * 50, 'b' * 50]|pprint }}", "only what fits a line"),
    (r#"{{ '\N{EM DASH}' }}"#, "no names of characters"),
    (
        "{% for x in [1] recursive %}{% break %}{% else %}e{% endfor %}",
        "to Jinja a round that is left early is none",
    ),
    ("{{ 5 is filter }}", "only of texts"),
    ("{{ {1: 2}|pprint if false else {1: 2, 'a': 3}|pprint }}", "no order of keys that are no texts"),
];

#[test]
fn templates_print_what_jinja_prints() {
    assert_printed("jinja.jsonl.gz", 100);
}

#[test]
fn templates_of_all_kinds_print_what_jinja_prints() {
    assert_printed("jinja_more.jsonl.gz", 700);
}

/// That each template of a file prints its text, or is refused as it should be.
fn assert_printed(file: &str, least: usize) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/prompts").join(file);
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
            Err(PromptError::Template(_)) if REFUSED.iter().any(|(it, _)| *it == template) => {
                count += 1;
                continue;
            }
            Err(error) => error.to_string(),
        };
        if got != case["text"] || REFUSED.iter().any(|(it, _)| *it == template) {
            wrong.push(format!("{template}\n  got  {got:?}\n  want {:?}", case["text"]));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > least, "only {count} templates");
}
