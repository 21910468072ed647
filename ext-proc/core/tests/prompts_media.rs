//! Chats with pictures and sounds: the prompt up to the first of them.

mod prompts_common;
mod prompts_letters;

use kvpick_core::{
    prompts::{Prompt, PromptError, Prompter, Settings},
    request::{Api, Request},
};
use prompts_common::{prompter, prompter_with};
use serde_json::{Value, json};

/// In the style of Qwen2-VL.
const VISION: &str = "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system
Be kind.<|im_end|>
{% endif %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}<|im_end|>
{% else %}{% for c in m.content %}{% if c.type == 'image' or 'image' in c %}<|vision_start|><|image_pad|><|vision_end|>\
{% elif c.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in c %}{{ c.text }}{% endif %}\
{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}";

/// In the style of Llama 3.2 Vision: what stands at the top depends on whether there is a picture at all, and a picture's
/// place is taken by plain text in this vocabulary.
const LLAMA: &str = "{{ bos_token }}{% set ns = namespace(has_images=false) %}{% for m in messages %}\
{% for c in m.content %}{% if c['type'] == 'image' %}{% set ns.has_images = true %}{% endif %}{% endfor %}{% endfor %}\
{% if not ns.has_images %}<|start_header_id|>system<|end_header_id|>\n\nToday.<|eot_id|>{% endif %}\
{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{% if m.content is string %}\
{{ m.content }}{% else %}{% for c in m.content %}{% if c['type'] == 'image' %}<|image|>{% elif c['type'] == 'text' %}\
{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|eot_id|>{% endfor %}\
{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}";

/// In the style of InternVL and others that take one string.
const STRING: &str = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Prints pictures before any text.
const PICTURES_FIRST: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.content %}\
{% if c.type == 'image' %}<|image_pad|>{% endif %}{% endfor %}{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}\
{% endif %}{% endfor %}<|im_end|>{% endfor %}";

fn cut_of(prompter: &Prompter, api: Api, body: &Value) -> Result<Prompt, PromptError> {
    let request = Request::parse(api, body.to_string().as_bytes()).expect("a request");
    assert!(request.has_media, "{body}");
    prompter.token_ids(&request).expect_err("ids of all of it are not known");
    let mut prompts = prompter.prompts(&request)?;
    assert_eq!(prompts.len(), 1);
    Ok(prompts.remove(0))
}

#[track_caller]
fn text_of_cut(prompter: &Prompter, body: &Value) -> String {
    let prompt =
        cut_of(prompter, Api::ChatCompletions, body).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert!(prompt.is_cut && prompt.media.is_empty());
    prompter.decode(&prompt.ids)
}

fn image() -> Value {
    json!({"type": "image_url", "image_url": {"url": "https://images/1.png"}})
}

fn said(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn user(parts: &[Value]) -> Value {
    json!({"messages": [{"role": "user", "content": "Hi  there"}, {"role": "assistant", "content": "Oh"},
                        {"role": "user", "content": parts}]})
}

const BEFORE: &str = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi  there<|im_end|>\n\
                      <|im_start|>assistant\nOh<|im_end|>\n<|im_start|>user\n";

#[test]
fn parts_before_the_first_medium_are_known() {
    let prompter = prompter_with("qwen3", Some(VISION), Settings::default());
    for (parts, after) in [
        (vec![image(), said("What?")], ""),
        (vec![said("What is "), image(), image(), said("\n?")], "What is "),
        (vec![said("\n"), json!({"type": "video_url", "video_url": {"url": "u"}})], "\n"),
        (vec![said("a"), json!({"image_url": "u", "uuid": "x"}), image()], "a"),
        (vec![said("a"), json!({"type": "text", "text": "b", "uuid": "x", "image_url": "u"})], "a"),
        // Nothing is printed for a sound: the engine refuses this, and what stands here does not matter.
        (vec![image(), json!({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}})], ""),
    ] {
        let body = user(&parts);
        let want = format!("{BEFORE}{after}");
        let ids = cut_of(&prompter, Api::ChatCompletions, &body).expect("a beginning").ids;
        assert_eq!(ids, prompter.encode(&want, false).expect("text"), "{body}: {:?}", prompter.decode(&ids));
    }
}

#[test]
fn other_apis_lead_to_the_same() {
    let prompter = prompter_with("qwen3", Some(VISION), Settings::default());
    let picture =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}});
    let of = |api, body: Value| {
        let prompt = cut_of(&prompter, api, &body).unwrap_or_else(|error| panic!("{error}: {body}"));
        prompter.decode(&prompt.ids)
    };
    let begin = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n";
    let body =
        json!({"system": "S", "messages": [{"role": "user", "content": [said("a"), picture, said("b")]}]});
    assert_eq!(of(Api::Messages, body), format!("{begin}a"));
    // A tool's pictures come in a message of the user's, behind the tool's.
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [picture, said("seen")]});
    let call = json!({"type": "tool_use", "id": "t", "name": "look", "input": {}});
    let body = json!({"system": "S", "messages": [{"role": "user", "content": "look"},
        {"role": "assistant", "content": [call]}, {"role": "user", "content": [result, said("and?")]}]});
    let want = "look<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\nseen<|im_end|>\n<|im_start|>user\n";
    assert_eq!(of(Api::Messages, body), format!("{begin}{want}"));

    let part = json!({"type": "input_image", "image_url": "u", "detail": "low"});
    let text = json!({"type": "input_text", "text": "a"});
    let body = json!({"instructions": "S", "input": [{"role": "user", "content": [text, part]}]});
    assert_eq!(of(Api::Responses, body), format!("{begin}a"));
    let output = json!({"type": "function_call_output", "call_id": "c", "output": [part]});
    let body = json!({"instructions": "S", "input": [{"role": "user", "content": "a"}, output]});
    assert_eq!(of(Api::Responses, body), format!("{begin}a<|im_end|>\n<|im_start|>tool\n"));

    let chats = json!({"input": [[{"role": "system", "content": "S"}, {"role": "user", "content": [image()]}],
                                 [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}]]});
    let request = Request::parse(Api::Pooling, chats.to_string().as_bytes()).expect("a request");
    let prompts = prompter.prompts(&request).expect("prompts");
    assert_eq!(prompts.iter().map(|it| it.is_cut).collect::<Vec<_>>(), [true, false]);
    assert_eq!(prompter.decode(&prompts[0].ids), begin);
    assert_eq!(prompter.decode(&prompts[1].ids), format!("{begin}a<|im_end|>\n"));
}

#[test]
fn of_one_string_nothing_is_known_of_the_message() {
    for prompter in
        [prompter("qwen3", Settings::default()), prompter_with("qwen3", Some(STRING), Settings::default())]
    {
        let body = json!({"messages": [{"role": "system", "content": "S\u{e9}"}, {"role": "user", "content": "Hi  there"},
            {"role": "assistant", "content": "Oh"}, {"role": "user", "content": [said("What"), image()]},
            {"role": "assistant", "content": "No"}, {"role": "user", "content": [image()]}]});
        let want = "<|im_start|>system\nS\u{e9}<|im_end|>\n<|im_start|>user\nHi  there<|im_end|>\n<|im_start|>assistant\n\
                    Oh<|im_end|>\n<|im_start|>";
        assert_eq!(text_of_cut(&prompter, &body), want);
    }
    // Nothing of the first message is sure, and nothing stands before it but its own beginning.
    let bare = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let prompter = prompter_with("qwen3", Some(bare), Settings::default());
    let body = json!({"messages": [{"role": "user", "content": [image()]}]});
    assert_eq!(cut_of(&prompter, Api::ChatCompletions, &body).expect_err("nothing is sure").label(), "media");
}

#[test]
fn line_feeds_before_a_picture_are_left_out_where_the_engine_joins_them() {
    let prompter = prompter("gemma3", Settings::default());
    let body = json!({"messages": [{"role": "user", "content": "a\n\nb"}, {"role": "assistant", "content": "c"},
                                   {"role": "user", "content": [image(), said("d")]}]});
    let want = "<bos><start_of_turn>user\na\n\nb<end_of_turn>\n<start_of_turn>model\nc<end_of_turn>\n<start_of_turn>user";
    assert_eq!(text_of_cut(&prompter, &body), want);
    let body = json!({"messages": [{"role": "user", "content": [said("a"), image(), said("d")]}]});
    assert_eq!(text_of_cut(&prompter, &body), "<bos><start_of_turn>user\na");
}

#[test]
fn what_is_said_because_there_is_a_picture_is_known() {
    let prompter = prompter_with("llama3_1", Some(LLAMA), Settings::default());
    let body = json!({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Oh"},
                                   {"role": "user", "content": [said("a"), image(), said("d")]}]});
    let user = "<|start_header_id|>user<|end_header_id|>";
    let want = format!(
        "<|begin_of_text|>{user}\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nOh<|eot_id|>{user}"
    );
    assert_eq!(
        text_of_cut(&prompter, &body),
        want,
        "the place of the picture is no token of this vocabulary"
    );
}

#[test]
fn a_template_may_print_pictures_before_what_precedes_them() {
    let prompter = prompter_with("qwen3", Some(PICTURES_FIRST), Settings::default());
    for parts in [vec![image()], vec![said("a"), image()], vec![said("a"), image(), said("b"), image()]] {
        let body = json!({"messages": [{"role": "user", "content": parts}]});
        assert_eq!(text_of_cut(&prompter, &body), "<|im_start|>", "{body}");
    }
}

#[test]
fn who_types_what_stands_for_a_picture_has_it_there() {
    let typed = |text: &str| {
        json!({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": text},
                            {"role": "assistant", "content": "Oh"}, {"role": "user", "content": [image()]}]})
    };
    let prompter = prompter_with("qwen3", Some(VISION), Settings::default());
    let begin = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n";
    assert_eq!(text_of_cut(&prompter, &typed("a<|image_pad|>")), format!("{begin}a"));
    assert_eq!(text_of_cut(&prompter, &typed("a<|video_pad|>")), format!("{begin}a"));
    let all =
        format!("{begin}a<think> <image><|im_end|>\n<|im_start|>assistant\nOh<|im_end|>\n<|im_start|>user\n");
    assert_eq!(text_of_cut(&prompter, &typed("a<think> <image>")), all);
    // Which word stands for a picture in a string is the model's own: any may be it.
    let prompter = prompter_with("qwen3", Some(STRING), Settings::default());
    for word in ["<image>", "(<image>./</image>)", "<|image_1|>", "<IMG_CONTEXT>"] {
        let want = "<|im_start|>system\nS<|im_end|>\n<|im_start|>";
        assert_eq!(text_of_cut(&prompter, &typed(&format!("a {word}"))), want, "{word}");
    }
}

#[test]
fn what_moves_the_text_before_a_medium_is_refused() {
    let label = |prompter: &Prompter, extra: Value, part: Value| {
        let mut body =
            json!({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": [part]}]});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        cut_of(prompter, Api::ChatCompletions, &body).map_or_else(|error| error.label(), |_| "ok")
    };
    let prompter = prompter_with("qwen3", Some(VISION), Settings::default());
    assert_eq!(label(&prompter, json!({"mm_processor_kwargs": {"fps": 1}}), image()), "ok");
    assert_eq!(label(&prompter, json!({"truncate_prompt_tokens": null}), image()), "ok");
    for extra in [
        json!({"truncate_prompt_tokens": 5}),
        json!({"truncate_prompt_tokens": -1}),
        json!({"mm_processor_kwargs": {"use_audio_in_video": true}}),
    ] {
        assert_eq!(label(&prompter, extra, image()), "media");
    }
    for part in
        [json!({"type": "prompt_embeds", "data": "eA=="}), json!({"type": "file", "file": {"file_id": "f"}})]
    {
        assert_eq!(label(&prompter, json!({}), part), "media");
    }
    for config in [
        json!({"model_type": "paligemma"}),
        json!({"model_type": "phi3_v"}),
        json!({"model_type": "x", "is_encoder_decoder": true}),
    ] {
        let prompter = prompts_letters::letters_of(&config, VISION, &["<|im_start|>", "<|image_pad|>"]);
        assert_eq!(label(&prompter, json!({}), image()), "media", "{config}");
    }
    let prompter =
        prompts_letters::letters_of(&json!({"model_type": "x"}), VISION, &["<|im_start|>", "<|image_pad|>"]);
    assert_eq!(label(&prompter, json!({}), image()), "ok");
}

#[test]
fn the_tokenizers_own_first_token_is_there() {
    let prompter = prompter("gemma3", Settings::default());
    let body =
        json!({"input": [{"role": "user", "content": [json!({"type": "input_image", "image_url": "u"})]}]});
    let prompt = cut_of(&prompter, Api::Responses, &body).expect("a beginning");
    assert_eq!(prompter.decode(&prompt.ids), "<bos><bos><start_of_turn>user");
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    /// Bits of what people and models write.
    fn bits() -> impl Strategy<Value = String> {
        let bit = prop_oneof![
            Just("<|im_start|>"),
            Just("<|im_end|>"),
            Just("<|vision_start|>"),
            Just("<tool_response>"),
            Just("<think>\n"),
            Just("</think>\n\n"),
            Just("<end_of_turn>"),
            Just("\n"),
            Just("\n\n"),
            Just("  "),
            Just("<"),
            Just("|im_end|>"),
            Just("e\u{301}"),
            Just("é"),
            Just("潮"),
            Just(" word"),
            Just("'s"),
            Just("12345"),
            Just("🌊"),
        ];
        prop::collection::vec(bit, 0..6).prop_map(|bits| bits.concat())
    }

    /// The messages, and of each part whether it is a picture.
    fn chats() -> impl Strategy<Value = Vec<Vec<(bool, String)>>> {
        let parts = prop::collection::vec((prop::bool::weighted(0.3), bits()), 1..4);
        prop::collection::vec(parts, 1..5)
    }

    fn body(chat: &[Vec<(bool, String)>], picture: &Value) -> Value {
        let role = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
        let part =
            |(is_picture, text): &(bool, String)| if *is_picture { picture.clone() } else { said(text) };
        let message = |(at, parts): (usize, &Vec<(bool, String)>)| json!({"role": role(at), "content": parts.iter().map(part).collect::<Vec<_>>()});
        json!({"messages": chat.iter().enumerate().map(message).collect::<Vec<_>>()})
    }

    /// The same with nothing but pictures in the first message that has one.
    fn without_text(chat: &[Vec<(bool, String)>]) -> Vec<Vec<(bool, String)>> {
        let mut chat = chat.to_vec();
        if let Some(parts) = chat.iter_mut().find(|parts| parts.iter().any(|part| part.0)) {
            parts.retain(|part| part.0);
        }
        chat
    }

    fn ids_with(prompter: &Prompter, chat: &[Vec<(bool, String)>], placeholder: &str) -> Vec<u32> {
        let body = body(chat, &said(placeholder)).to_string();
        let request = Request::parse(Api::ChatCompletions, body.as_bytes()).expect("a request");
        prompter.token_ids(&request).expect("ids").remove(0)
    }

    fn check(
        prompter: &Prompter,
        chat: &[Vec<(bool, String)>],
        placeholders: &[&str],
        is_special: impl Fn(u32) -> bool,
    ) {
        let body = body(chat, &image());
        let request = Request::parse(Api::ChatCompletions, body.to_string().as_bytes()).expect("a request");
        if !request.has_media {
            return;
        }
        let all: Vec<_> = placeholders.iter().map(|it| ids_with(prompter, chat, it)).collect();
        let mut common: &[u32] = &[];
        let bare: Vec<_> = match placeholders {
            // The template prints just this: what stands before it is known to the last letter.
            [printed] => {
                let first = prompter.encode(printed, false).expect("text")[0];
                common = all[0].split(|id| *id == first).next().unwrap_or_default();
                Vec::new()
            }
            // Of the first message with one nothing is known.
            _ => placeholders.iter().map(|it| ids_with(prompter, &without_text(chat), it)).collect(),
        };
        if let Some(one) = bare.first() {
            let same = |ids: &Vec<u32>| ids.iter().zip(one).take_while(|(a, b)| a == b).count();
            common = &one[..bare.iter().map(same).min().unwrap_or(0)];
        }
        let sure = common.iter().rposition(|id| is_special(*id)).map_or(0, |at| at + 1);
        let found = match prompter.prompts(&request) {
            Ok(prompts) => prompts[0].ids.clone(),
            Err(error) => {
                assert_eq!(error.label(), "media");
                Vec::new()
            }
        };
        for ids in &all {
            assert!(
                ids.starts_with(&found),
                "{body}: {:?} {:?}",
                prompter.decode(&found),
                prompter.decode(ids)
            );
        }
        // What the engine may take for a medium ends it, and this model's template looks for thoughts and tools' answers
        // in messages; nothing else ends it before the last token that is sure.
        let typed = ["vision_start", "tool_response", "think"].iter().any(|it| body.to_string().contains(it));
        assert!(
            typed || sure <= found.len(),
            "{body}: {:?} {:?}",
            prompter.decode(&found),
            prompter.decode(common)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

        #[test]
        fn a_cut_prompt_begins_every_whole_one(chat in chats()) {
            let special = |id| (151_643..151_669).contains(&id);
            let vision = prompter_with("qwen3", Some(VISION), Settings::default());
            check(&vision, &chat, &["<|vision_start|><|image_pad|><|vision_end|>"], special);
            let words = ["<|vision_start|><|image_pad|><|vision_end|>", "<image>", "<|image_1|>\nx", "[IMG]", "Zq", "潮"];
            for template in [Some(STRING), None] {
                check(&prompter_with("qwen3", template, Settings::default()), &chat, &words, special);
            }
        }

        #[test]
        fn the_same_where_line_feeds_are_tokens(chat in chats()) {
            let prompter = prompter("gemma3", Settings::default());
            check(&prompter, &chat, &["<start_of_image>"], |id| [2, 105, 106].contains(&id));
        }
    }
}
