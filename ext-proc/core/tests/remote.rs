//! Prompts made by another server: what is sent, and what its answers mean.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::borrow::Cow;

use kvpick_core::{
    outcome::Reason,
    prompts::{Medium, Prompt},
    remote::{Ask, Failure, Form, MOST_ANSWER, Reading, Verdict, known},
    request::{Api, Request},
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn request(api: Api, body: &str) -> Request {
    Request::parse(api, body.as_bytes()).unwrap()
}

fn ask(api: Api, body: &str, form: Form) -> Result<(String, String, Reading), Failure> {
    let it = Ask::new(&request(api, body), body.as_bytes(), form)?;
    Ok((it.path.to_owned(), String::from_utf8(it.body.into_owned()).unwrap(), it.reading))
}

const TEXT: &str = r#"{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": true}"#;
const PICTURE: &str = r#"{"messages": [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}], "n": 2 }
"#;

#[test]
fn a_body_is_sent_as_it_is_to_the_route_of_its_api() {
    let messages = r#"{"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}"#;
    for (api, body, path) in [
        (Api::ChatCompletions, TEXT, "/v1/chat/completions/render"),
        (Api::Completions, r#"{"prompt": ["a", "b"], "suffix": "c"}"#, "/v1/completions/render"),
        (Api::Responses, r#"{"input": "Hi"}"#, "/v1/responses/render"),
        (Api::Messages, messages, "/v1/messages/render"),
    ] {
        let request = request(api, body);
        let ask = Ask::new(&request, body.as_bytes(), Form::Render).unwrap();
        assert_eq!(ask.path, path);
        assert!(matches!(ask.body, Cow::Borrowed(it) if it == body.as_bytes()), "{api:?}");
        assert_eq!(ask.reading.prompts, if api == Api::Completions { 2 } else { 1 });
    }
}

#[test]
fn what_must_differ_is_put_behind_the_rest() {
    let (_, body, reading) = ask(Api::ChatCompletions, PICTURE, Form::Render).unwrap();
    assert!(reading.has_media);
    let unchanged = PICTURE.trim_end().strip_suffix('}').unwrap();
    assert_eq!(body, format!("{unchanged},\"mm_payload\":\"none\",\"return_mm_kwargs\":false}}"));
    let beams = r#"{"messages": [{"role": "user", "content": "Hi"}], "use_beam_search": true}"#;
    let (_, body, _) = ask(Api::ChatCompletions, beams, Form::Render).unwrap();
    let sent: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(sent["use_beam_search"], false, "of two with one name the last counts");

    let mut renamed = request(Api::ChatCompletions, TEXT);
    renamed.model = Some("a \"b\"".to_owned());
    let ask = Ask::new(&renamed, TEXT.as_bytes(), Form::Render).unwrap();
    let sent: Value = serde_json::from_slice(&ask.body).unwrap();
    assert_eq!(sent["model"], "a \"b\"");
}

#[test]
fn what_can_not_be_had_exactly_is_not_asked() {
    let chat = |more: &str| format!(r#"{{"messages": [{{"role": "user", "content": "Hi"}}], {more}}}"#);
    let off = r#"{"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}], "thinking": {"type": "disabled"}}"#;
    let embeds = r#"{"messages": [{"role": "user", "content": [{"type": "prompt_embeds", "data": "AA"}]}]}"#;
    let renamed = r#"{"messages": [{"role": "assistant", "content": "Hi", "reasoning_content": "x"}]}"#;
    for (api, body, form) in [
        (Api::Messages, off.to_owned(), Form::Render),
        (Api::ChatCompletions, embeds.to_owned(), Form::Render),
        (Api::Completions, r#"{"prompt": "x", "prompt_embeds": "AA"}"#.to_owned(), Form::Render),
        (Api::ChatCompletions, PICTURE.to_owned(), Form::Tokenize),
        (Api::ChatCompletions, chat(r#""truncate_prompt_tokens": 3"#), Form::Tokenize),
        (Api::ChatCompletions, chat(r#""reasoning_effort": "low""#), Form::Tokenize),
        (Api::ChatCompletions, chat(r#""documents": []"#), Form::Tokenize),
        (Api::ChatCompletions, chat(r#""tools": [{}], "tool_choice": "none""#), Form::Tokenize),
        (Api::ChatCompletions, renamed.to_owned(), Form::Tokenize),
        (Api::Completions, r#"{"prompt": ["a", "b"]}"#.to_owned(), Form::Tokenize),
        (Api::Embeddings, r#"{"input": ["a", "b"]}"#.to_owned(), Form::Tokenize),
        (Api::Embeddings, r#"{"input": "a", "truncate_prompt_tokens": 1}"#.to_owned(), Form::Render),
        (Api::Pooling, r#"{"messages": [{"role": "user", "content": "Hi"}]}"#.to_owned(), Form::Render),
    ] {
        let failure = ask(api, &body, form).unwrap_err();
        assert_eq!(Reason::from(&failure), Reason::REMOTE_INEXACT, "{body}");
        assert!(failure.is_unasked() && !failure.is_fault());
    }
    let goes_on = ask(Api::Responses, r#"{"input": "x", "previous_response_id": "r"}"#, Form::Render);
    assert_eq!(goes_on.unwrap_err(), Failure::Stateful);
    assert_eq!(ask(Api::Responses, r#"{"input": "x"}"#, Form::Tokenize).unwrap_err(), Failure::NoRoute);
}

#[test]
fn texts_are_tokenized_where_nothing_renders() {
    assert_eq!(ask(Api::ChatCompletions, TEXT, Form::Tokenize).unwrap().0, "/tokenize");
    let (path, body, _) = ask(Api::Embeddings, r#"{"model": "e", "input": "a"}"#, Form::Tokenize).unwrap();
    assert_eq!(path, "/tokenize");
    let sent: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(sent, json!({"model": "e", "prompt": "a", "add_special_tokens": true}));
    let (path, body, reading) =
        ask(Api::Pooling, r#"{"input": ["a", "é"], "add_special_tokens": false}"#, Form::Render).unwrap();
    assert_eq!((path.as_str(), reading.prompts), ("/v1/completions/render", 2));
    let sent: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(sent, json!({"prompt": ["a", "é"], "max_tokens": 1, "add_special_tokens": false}));
}

#[test]
fn token_ids_are_prompts_already() {
    let ids = |api, body: &str| known(&request(api, body));
    assert_eq!(ids(Api::Completions, r#"{"prompt": [1, 2]}"#), Some(vec![vec![1, 2].into()]));
    let two = Some(vec![vec![1].into(), vec![2, 3].into()]);
    assert_eq!(ids(Api::Embeddings, r#"{"input": [[1], [2, 3]]}"#), two);
    assert_eq!(ids(Api::Completions, r#"{"prompt": "x"}"#), None);
    assert_eq!(ids(Api::Completions, r#"{"prompt": [1, 2], "truncate_prompt_tokens": 1}"#), None);
    assert_eq!(ids(Api::ChatCompletions, TEXT), None);
}

fn reading(form: Form, api: Api, prompts: usize, has_media: bool) -> Reading {
    Reading { form, api, prompts, has_media }
}

const RENDERED: Reading =
    Reading { form: Form::Render, api: Api::ChatCompletions, prompts: 1, has_media: false };

/// An answer of 0.32, shortened.
fn rendered(ids: &[u32], features: &Value) -> Value {
    json!({
        "request_id": "chatcmpl-1", "token_ids": ids, "token_offsets": null, "features": features,
        "sampling_params": {"temperature": 1.0}, "model": "m", "stream": false, "cache_salt": null,
    })
}

#[test]
fn answers_of_all_versions_are_read() {
    let of = |reading: Reading, answer: Value| reading.prompts(answer.to_string().as_bytes());
    let one = Ok(vec![Prompt::from(vec![7, 8])]);
    for api in [Api::ChatCompletions, Api::Responses, Api::Messages] {
        let answer = rendered(&[7, 8], &Value::Null);
        assert_eq!(of(reading(Form::Render, api, 1, false), answer), one);
    }
    let old_prompt = json!({"prompt_token_ids": [7, 8], "prompt": "x"});
    assert_eq!(of(RENDERED, json!([[{"role": "user"}], [old_prompt]])), one, "0.15 to 0.17");
    let completions = reading(Form::Render, Api::Completions, 2, false);
    let two = Ok(vec![vec![7].into(), vec![8, 9].into()]);
    let answer = json!([rendered(&[7], &Value::Null), rendered(&[8, 9], &Value::Null)]);
    assert_eq!(of(completions, answer), two);
    assert_eq!(of(completions, json!([{"prompt_token_ids": [7]}, {"prompt_token_ids": [8, 9]}])), two);
    let tokenized = json!({"count": 2, "max_model_len": 9, "tokens": [7, 8], "token_strs": null});
    assert_eq!(of(reading(Form::Tokenize, Api::Completions, 1, false), tokenized), one);
    let harmony = json!({"count": 2, "max_model_len": 9, "tokens": [200_006, 8]});
    let failure = of(reading(Form::Tokenize, Api::ChatCompletions, 1, false), harmony).unwrap_err();
    assert_eq!(Reason::from(&failure), Reason::REMOTE_INEXACT);
}

#[test]
fn media_come_in_the_order_of_their_tokens() {
    let features = json!({
        "mm_hashes": {"image": ["i1", "i2"], "audio": ["a1"]},
        "mm_placeholders": {
            "image": [{"offset": 0, "length": 2}, {"offset": 6, "length": 2, "is_embed": null}],
            "audio": [{"offset": 3, "length": 1}],
        },
        "kwargs_data": null, "mm_metadata": null,
    });
    let media = Reading { has_media: true, ..RENDERED };
    let answer = rendered(&[9; 8], &features).to_string();
    let prompts = media.prompts(answer.as_bytes()).unwrap();
    let medium =
        |identifier: &str, offset, length| Medium { identifier: identifier.to_owned(), offset, length };
    assert_eq!(prompts[0].media, [medium("i1", 0, 2), medium("a1", 3, 1), medium("i2", 6, 2)]);
    assert!(!prompts[0].is_cut);

    let silent = media.prompts(rendered(&[9; 8], &Value::Null).to_string().as_bytes()).unwrap_err();
    assert_eq!(Reason::from(&silent), Reason::REMOTE_INEXACT, "its blocks could not be named");
}

#[test]
fn answers_that_do_not_hold_together_are_refused() {
    let image = |hashes: Value, places: Value| {
        rendered(&[9; 8], &json!({"mm_hashes": {"image": hashes}, "mm_placeholders": {"image": places}}))
    };
    let place = |offset: u32, length: u32| json!({"offset": offset, "length": length});
    for answer in [
        json!({}),
        json!([]),
        json!("text"),
        rendered(&[], &Value::Null),
        json!({"token_ids": [1, -1]}),
        json!({"token_ids": [4_294_967_296_u64]}),
        json!({"token_ids": [1.0]}),
        json!({"token_ids": "1"}),
        json!([[], []]),
        json!([[], [{"prompt_token_ids": [1]}, {"prompt_token_ids": [2]}]]),
        image(json!(["a"]), json!([])),
        image(json!([]), json!([place(0, 1)])),
        image(json!(["a"]), json!([place(7, 2)])),
        image(json!(["a"]), json!([place(u32::MAX, u32::MAX)])),
        image(json!(["x".repeat(5_000)]), json!([place(0, 1)])),
        rendered(&[9; 8], &json!({"mm_hashes": {}, "mm_placeholders": {"image": [place(0, 1)]}})),
    ] {
        let failure = RENDERED.prompts(answer.to_string().as_bytes()).unwrap_err();
        assert!(matches!(failure, Failure::BadAnswer(_)), "{answer}: {failure}");
        assert!(failure.is_fault());
    }
    let too_many = format!("{{\"token_ids\": [{}1]}}", "1,".repeat(4_000_000));
    assert!(too_many.len() < MOST_ANSWER);
    assert!(RENDERED.prompts(too_many.as_bytes()).is_err());
    let other_number = reading(Form::Render, Api::Completions, 2, false);
    let failure = other_number.prompts(br#"[{"token_ids": [1]}]"#).unwrap_err();
    assert!(failure.to_string().contains("1 prompts instead of 2"), "{failure}");
}

#[test]
fn a_status_speaks_against_the_request_the_route_or_the_server() {
    let unknown =
        br#"{"error":{"message":"The model `nope` does not exist.","type":"NotFoundError","code":404}}"#;
    let refused = br#"{"error":{"message":"too long","type":"BadRequestError","code":400}}"#;
    let detail = br#"{"detail":"Not Found"}"#;
    let judge = |status, body: &[u8]| RENDERED.judge(status, body);
    assert_eq!(judge(200, b""), Ok(Verdict::Read));
    assert_eq!(judge(404, detail), Ok(Verdict::Absent));
    assert_eq!(judge(405, b""), Ok(Verdict::Absent));
    assert_eq!(judge(404, unknown), Err(Failure::UnknownModel));
    assert_eq!(judge(400, refused), Err(Failure::Refused { status: 400, message: "too long".to_owned() }));
    assert_eq!(judge(401, b""), Err(Failure::Denied(401)));
    assert_eq!(judge(429, b""), Err(Failure::Overloaded));
    for status in [100, 204, 302, 500, 503, 999] {
        assert!(matches!(judge(status, refused), Err(Failure::Down(_))), "{status}");
    }
    let elsewhere = reading(Form::Tokenize, Api::ChatCompletions, 1, false);
    assert!(matches!(elsewhere.judge(400, refused), Err(Failure::Inexact(_))), "the engine may take it");
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z]{0,3}".prop_map(Value::from),
    ];
    let key = prop::sample::select(vec![
        "token_ids",
        "prompt_token_ids",
        "tokens",
        "features",
        "mm_hashes",
        "mm_placeholders",
        "image",
        "offset",
        "length",
        "error",
        "type",
        "message",
    ]);
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..5)
                .prop_map(|it| it.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

fn any_reading() -> impl Strategy<Value = Reading> {
    let form = prop::sample::select(vec![Form::Render, Form::Tokenize]);
    (form, prop::sample::select(Api::ALL.to_vec()), 0_usize..3, any::<bool>())
        .prop_map(|(form, api, prompts, has_media)| reading(form, api, prompts, has_media))
}

proptest! {
    #[test]
    fn no_answer_is_too_strange(reading in any_reading(), answer in value(), status in 0_u16..1000, cut in 0_usize..200) {
        let text = answer.to_string();
        for bytes in [text.as_bytes(), &text.as_bytes()[..cut.min(text.len())]] {
            reading.judge(status, bytes).ok();
            if let Ok(prompts) = reading.prompts(bytes) {
                prop_assert_eq!(prompts.len(), reading.prompts);
                for prompt in prompts {
                    prop_assert!(!prompt.ids.is_empty());
                    prop_assert!(prompt.media.iter().all(|it| it.offset + it.length <= prompt.ids.len()));
                    prop_assert!(prompt.media.is_sorted_by_key(|it| it.offset));
                }
            }
        }
    }

    #[test]
    fn no_bytes_are_too_strange(reading in any_reading(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        reading.judge(404, &bytes).ok();
        reading.prompts(&bytes).ok();
    }

    #[test]
    fn a_changed_body_is_the_same_json_with_more(content in ".{0,20}", spaces in "[ \n]{0,3}") {
        let body = json!({"messages": [{"role": "user", "content": [content, {"type": "image_url", "image_url": "x"}]}]});
        let text = format!("{spaces}{body}{spaces}");
        let (_, sent, _) = ask(Api::ChatCompletions, &text, Form::Render).unwrap();
        let mut sent: Value = serde_json::from_str(&sent).unwrap();
        let more = sent.as_object_mut().unwrap();
        prop_assert_eq!(more.remove("mm_payload"), Some(json!("none")));
        prop_assert_eq!(more.remove("return_mm_kwargs"), Some(json!(false)));
        prop_assert_eq!(sent, body);
    }
}
