//! Bodies of all APIs, read as requests.

use super::*;

fn chat(body: &str) -> Result<Request, RequestError> {
    Request::parse(Api::ChatCompletions, body.as_bytes())
}

fn completion(body: &str) -> Result<Request, RequestError> {
    Request::parse(Api::Completions, body.as_bytes())
}

#[test]
fn fields_that_routing_reads() {
    let request = chat(
        r#"{"model":"m","messages":[{"role":"user","content":"x"}],"cache_salt":"s","stream":true,
           "stream_options":{"include_usage":true},"max_tokens":7,"max_completion_tokens":5,"n":3}"#,
    )
    .unwrap();
    assert_eq!((request.model.as_deref(), request.cache_salt.as_deref()), (Some("m"), Some("s")));
    assert_eq!((request.stream, request.include_usage), (true, true));
    assert_eq!(
        (request.max_tokens, request.n, request.reads_cache, request.has_media),
        (Some(5), 3, true, false)
    );

    let request = completion(r#"{"prompt":"x","model":"","max_tokens":null}"#).unwrap();
    assert_eq!((request.model, request.max_tokens, request.n), (None, Some(16), 1));
}

#[test]
fn prompt_log_probabilities_skip_the_cache() {
    let reads = |body: &str| completion(body).unwrap().reads_cache;
    assert!(reads(r#"{"prompt":"x","echo":true}"#));
    assert!(reads(r#"{"prompt":"x","logprobs":1}"#));
    assert!(!reads(r#"{"prompt":"x","echo":true,"logprobs":0}"#));
    assert!(!reads(r#"{"prompt":"x","prompt_logprobs":1}"#));
}

#[test]
fn every_api_has_its_path() {
    for api in Api::ALL {
        assert_eq!(Api::of_path(api.path()), Some(api));
    }
    assert_eq!(Api::of_path("/v1/messages/count_tokens"), None);
}

#[test]
fn each_api_has_its_own_fields() {
    let read = |api, body: &str| Request::parse(api, body.as_bytes()).unwrap();
    let response = read(
        Api::Responses,
        r#"{"model":"m","input":"x","max_output_tokens":7,"max_tokens":9,"stream":true,"cache_salt":"s"}"#,
    );
    assert_eq!((response.max_tokens, response.stream, response.include_usage), (Some(7), true, true));
    assert_eq!((response.model.as_deref(), response.cache_salt.as_deref()), (Some("m"), Some("s")));

    let messages = read(Api::Messages, r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":9}"#);
    assert_eq!((messages.max_tokens, messages.stream, messages.reads_cache), (Some(9), false, true));

    let embedding = read(Api::Embeddings, r#"{"input":"x","stream":true}"#);
    assert_eq!((embedding.max_tokens, embedding.stream, embedding.reads_cache), (Some(0), false, true));
}

#[test]
fn a_vector_per_token_skips_the_cache() {
    let reads = |body: &str| Request::parse(Api::Pooling, body.as_bytes()).unwrap().reads_cache;
    assert!(reads(r#"{"input":"x"}"#));
    assert!(reads(r#"{"input":"x","task":"classify"}"#));
    assert!(!reads(r#"{"input":"x","task":"token_embed"}"#));
    assert!(!reads(r#"{"input":"x","task":"token_classify"}"#));
    assert!(!reads(r#"{"input":"x","data":{}}"#));
}

#[track_caller]
fn refused(result: Result<Request, RequestError>, label: &str, message: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.label(), error.to_string().as_str()), (label, message));
}

#[test]
fn bad_bodies_name_the_field() {
    refused(chat("{"), "not_json", "body is not JSON: expected a key in double quotes at byte 1");
    refused(chat("[]"), "not_object", "body is an array, want a JSON object");
    let none = "messages: missing; a chat needs at least one message";
    refused(chat("{}"), "no_messages", none);
    refused(chat(r#"{"messages":"x"}"#), "wrong_type", "messages: is a string, want an array of messages");
    refused(chat(r#"{"messages":[1]}"#), "wrong_type", "messages[0]: is an integer, want an object");
    let message = "messages[0].role: is null, want a string";
    refused(chat(r#"{"messages":[{"content":"x"}]}"#), "wrong_type", message);
    let message = "messages[0].content: is an integer, want a string, an array or null";
    refused(chat(r#"{"messages":[{"role":"user","content":5}]}"#), "wrong_type", message);
    let message = "messages[0].tool_calls: is an object, want an array or null";
    refused(chat(r#"{"messages":[{"role":"user","tool_calls":{"a":1}}]}"#), "wrong_type", message);
    let message = "model: is an integer, want a string";
    refused(chat(r#"{"model":1,"messages":[{"role":"user"}]}"#), "wrong_type", message);

    let none = "prompt: missing or empty; send a string, a list of strings, or token ids";
    for body in [r"{}", r#"{"prompt":""}"#, r#"{"prompt":[]}"#, r#"{"prompt":[[]]}"#] {
        refused(completion(body), "no_prompt", none);
    }
    let message = "prompt[1]: is a string, want a token id (an integer from 0 to 4294967295)";
    refused(completion(r#"{"prompt":[1,"a"]}"#), "wrong_type", message);
    let message = "prompt[0][0]: is an integer, want a token id (an integer from 0 to 4294967295)";
    refused(completion(r#"{"prompt":[[-1]]}"#), "wrong_type", message);
}

#[test]
fn bad_bodies_of_newer_apis_name_the_field() {
    let read = |api, body: &str| Request::parse(api, body.as_bytes());
    let none = "input: missing or empty; send a string or a list";
    for body in ["{}", r#"{"input":null}"#] {
        refused(read(Api::Responses, body), "no_input", none);
        refused(read(Api::Embeddings, body), "no_input", none);
    }
    refused(read(Api::Embeddings, r#"{"input":[]}"#), "no_input", none);
    let message = "input[1]: is a string, want an object";
    refused(read(Api::Responses, r#"{"input":[{},"x"]}"#), "wrong_type", message);
    let message = "input[0]: is a string, want a token id (an integer from 0 to 4294967295)";
    refused(read(Api::Pooling, r#"{"input":["x",1]}"#), "wrong_type", message);
    let message = "input[1]: is an array, want a string, an array of strings, an array of token ids, or an array \
                   of such arrays";
    refused(read(Api::Pooling, r#"{"input":[1,[2]]}"#), "wrong_type", message);
    let message = "input[0][1].role: is null, want a string";
    let body = r#"{"input":[[{"role":"user"},{}]]}"#;
    refused(read(Api::Embeddings, body), "wrong_type", message);
    let message = "messages[0].content: is null, want a string or an array";
    refused(read(Api::Messages, r#"{"messages":[{"role":"user"}]}"#), "wrong_type", message);
    let message = "messages[0].content[0]: is a string, want an object";
    refused(read(Api::Messages, r#"{"messages":[{"role":"user","content":["x"]}]}"#), "wrong_type", message);
    let none = "messages: missing; a chat needs at least one message";
    refused(read(Api::Messages, "{}"), "no_messages", none);
}

#[test]
fn other_types_of_the_same_meaning_are_taken() {
    let request = chat(
        r#"{"messages":[],"max_tokens":"7","n":2.0,"stream":"yes","stream_options":{"include_usage":1},
           "echo":"on"}"#,
    )
    .unwrap();
    assert_eq!((request.max_tokens, request.n), (Some(7), 2));
    assert_eq!((request.stream, request.include_usage, request.reads_cache), (true, true, false));
    for ids in ["[1.0,2.0]", "[true,false]", r#"[1,"2"]"#, r#"[[1.0],["2",true]]"#] {
        assert!(completion(&format!(r#"{{"prompt":{ids}}}"#)).is_ok(), "{ids}");
    }
}

#[test]
fn media_are_seen() {
    let part = |part: &str| {
        chat(&format!(r#"{{"messages":[{{"role":"user","content":[{part}]}}]}}"#)).unwrap().has_media
    };
    assert!(part(r#"{"type":"image_url","image_url":{"url":"u"}}"#));
    assert!(part(r#"{"image_url":"u"}"#));
    assert!(part(r#"{"type":"input_audio","input_audio":{}}"#));
    assert!(part(r#"{"type":"text","text":"x","uuid":"u","image_url":"u"}"#));
    assert!(!part(r#"{"type":"text","text":"image_url","image_url":null}"#));
}
