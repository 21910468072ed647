use super::*;

fn usage(prompt: u64, cached: Option<u64>, output: u64) -> Usage {
    Usage { prompt: Some(prompt), cached, output: Some(output) }
}

/// What is read of it, whole and in pieces of every size; and how many pieces of one byte began an event.
fn read(content_type: &str, text: &str) -> (Usage, usize) {
    let mut whole = Reader::of(content_type).unwrap();
    let has_event = whole.push(text.as_bytes());
    let mut events = 0;
    for size in 1..40 {
        let mut reader = Reader::of(content_type).unwrap();
        let began = text.as_bytes().chunks(size).filter(|it| reader.push(it)).count();
        assert_eq!(reader.usage(), whole.usage(), "in pieces of {size}: {text}");
        assert_eq!(0 < began, has_event, "in pieces of {size}: {text}");
        if size == 1 {
            events = began;
        }
    }
    (whole.usage(), events)
}

fn json(text: &str) -> Usage {
    read("application/json", text).0
}

#[test]
fn chat_and_completions() {
    let answer = r#"{"id":"c-1","choices":[{"message":{"content":"say \"usage\": {\"prompt_tokens\": 1}"},"usage":{"prompt_tokens":2}}],
        "usage": {"prompt_tokens": 120, "total_tokens": 140, "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 96}}, "system_fingerprint": "x"}"#;
    assert_eq!(json(answer), usage(120, Some(96), 20));
    let without = answer.replace(r#"{"cached_tokens": 96}"#, "null");
    assert_eq!(json(&without), usage(120, None, 20));
}

#[test]
fn responses_and_messages() {
    let responses = r#"{"object":"response","usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":3}}"#;
    assert_eq!(json(responses), usage(9, Some(4), 3));
    let messages = r#"{"type":"message","usage":{"input_tokens":5,"output_tokens":3}}"#;
    assert_eq!(json(messages), usage(5, None, 3));
    let cached = r#"{"usage":{"input_tokens":5,"cache_read_input_tokens":16,"cache_creation_input_tokens":2,"output_tokens":3}}"#;
    assert_eq!(json(cached), usage(23, Some(16), 3));
}

#[test]
fn events_of_a_chat() {
    let events = [
        ": a comment",
        "",
        r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}],"usage":null}"#,
        "",
        r#"data: {"choices":[{"delta":{"content":"\"usage\":{\"prompt_tokens\":7}"}}]}"#,
        "",
        r#"data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}"#,
        "",
        "data: [DONE]",
        "",
        "",
    ];
    for end in ["\n", "\r\n", "\r"] {
        let (found, began) = read("text/event-stream; charset=utf-8", &events.join(end));
        assert_eq!((found, began), (usage(8, Some(0), 2), 3), "{end:?}");
    }
}

#[test]
fn events_of_the_other_apis() {
    let responses = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n\
        event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n\
        event: response.completed\ndata:{\"response\":{\"output\":[{\"usage\":{\"input_tokens\":1}}],\
        \"usage\":{\"input_tokens\":30,\"output_tokens\":4}}}\n\n";
    assert_eq!(read("text/event-stream", responses), (usage(30, None, 4), 1));
    let messages = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\
        \"usage\":{\"input_tokens\":12,\"output_tokens\":0}}}\n\n\
        event: message_delta\ndata: {\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":6}}\n\n";
    assert_eq!(read("text/event-stream", messages), (usage(12, None, 6), 2));
}

#[test]
fn one_event_in_several_lines_of_data() {
    let event = "data: {\"usage\":\ndata: {\"prompt_tokens\": 4,\ndata: \"completion_tokens\": 1}}\n\n";
    assert_eq!(read("text/event-stream", event), (usage(4, None, 1), 1));
}

#[test]
fn what_tells_nothing_is_nothing() {
    let nothing = Usage::default();
    for text in [
        "",
        "null",
        "usage",
        r#"{"usage":[{"prompt_tokens":1}]}"#,
        r#"{"usage":{"prompt_tokens":"many"}}"#,
        r#"{"usage":{"prompt_tokens":-1}}"#,
        r#"{"usage":{"prompt_tokens":1,"prompt_tokens":2}}"#,
        r#"{"a":{"usage":{"prompt_tokens":1}}}"#,
        r#"{"response":[{"usage":{"prompt_tokens":1}}]}"#,
        r#"["usage",{"usage":{"prompt_tokens":1}}]"#,
        r#"{"usages":{"prompt_tokens":1}}"#,
        r#"{"usage":{"prompt_tokens":1"#,
        "}}}]]]{{{[[[:::,,,\"\"\"",
    ] {
        assert_eq!(json(text), nothing, "{text}");
    }
    let long = format!(r#"{{"usage":{{"prompt_tokens":1,"x":"{}"}}}}"#, "y".repeat(9_000));
    assert_eq!(json(&long), nothing);
    assert!(Reader::of("text/html").is_none() && Reader::of("").is_none());
    assert!(Reader::of("Application/JSON;charset=utf-8").is_some());
}

#[test]
fn an_answer_without_end_costs_no_memory() {
    let mut reader = Reader::of("application/json").unwrap();
    reader.push(br#"{"usage":{"x":""#);
    for _ in 0..1_000 {
        reader.push(&[b'y'; 10_000]);
    }
    assert!(format!("{reader:?}").len() < 40_000);
}
