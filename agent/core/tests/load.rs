//! Real engines' metrics, older names, and what else may stand there.

#![expect(clippy::unwrap_used, reason = "a test may panic, and reads captures")]

use kvpick_agent_core::load::{CacheConfig, Metrics};
use kvpick_proto::words::Load;

fn captured(folder: &str) -> Metrics {
    let path = format!("{}/../../testdata/captures/{folder}/metrics.prom", env!("CARGO_MANIFEST_DIR"));
    Metrics::parse(&std::fs::read_to_string(path).unwrap(), 0)
}

fn cache(block_size: u32, num_gpu_blocks: u64) -> CacheConfig {
    CacheConfig {
        block_size: Some(block_size),
        hash_block_size: None,
        num_gpu_blocks: Some(num_gpu_blocks),
        algorithm: Some("sha256_cbor".to_owned()),
        prefix_caching: Some(true),
    }
}

#[test]
fn metrics_of_vllm_0_32() {
    let metrics = captured("v0.32-sha256cbor-int-bs16-dups");
    assert!(metrics.is_vllm);
    assert_eq!(metrics.asleep, Some(false));
    assert_eq!(metrics.cache, cache(16, 96));
    assert_eq!(metrics.process_start, Some(1_796_062_690.28));
    assert_eq!((metrics.load.prefix_queries, metrics.load.prefix_hits), (11_211, 3_408));
    assert_eq!(metrics.load.ttft_count, 84);
    assert!((metrics.load.ttft_sum_s - 7.034_108).abs() < 1e-5);
    assert_eq!((metrics.load.running, metrics.load.waiting), (0, 0));
}

#[test]
fn counters_that_are_shown_under_both_names_count_once() {
    let old = "vllm:gpu_prefix_cache_queries_total{engine=\"0\"} 10\nvllm:gpu_prefix_cache_hits_total{engine=\"0\"} 5\n";
    let new =
        "vllm:prefix_cache_queries_total{engine=\"0\"} 10\nvllm:prefix_cache_hits_total{engine=\"0\"} 5\n";
    for text in [format!("{old}{new}"), format!("{new}{old}"), old.to_owned(), new.to_owned()] {
        let load = Metrics::parse(&text, 0).load;
        assert_eq!((load.prefix_queries, load.prefix_hits), (10, 5), "{text}");
    }
}

#[test]
fn metrics_of_vllm_0_16_with_an_adapter() {
    let metrics = captured("v0.16-sha256cbor-bytes-bs16");
    assert_eq!(metrics.cache, cache(16, 96));
    assert_eq!((metrics.load.prefix_queries, metrics.load.prefix_hits), (11_954, 3_408));
    // Of the series of all times the latest counts: nothing runs.
    assert_eq!(metrics.load.running_adapters, Vec::<String>::new());
}

#[test]
fn a_busy_engine() {
    let text = r#"
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:lora_requests_info{max_lora="1",running_lora_adapters="old",waiting_lora_adapters=""} 1.0e+09
vllm:lora_requests_info{max_lora="1",running_lora_adapters="a,b",waiting_lora_adapters=" c "} 1.5e+09
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0
"#;
    let metrics = Metrics::parse(text, 0);
    assert_eq!(metrics.asleep, Some(true));
    let names = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        metrics.load,
        Load {
            running: 3,
            waiting: 2,
            cache_use: 0.25,
            running_adapters: names(&["a", "b"]),
            waiting_adapters: names(&["c"]),
            ..Load::default()
        }
    );
}

#[test]
fn names_before_0_12() {
    let text = "vllm:gpu_cache_usage_perc{engine=\"0\"} 0.5\n\
                vllm:gpu_prefix_cache_queries_total{engine=\"0\"} 10\n\
                vllm:gpu_prefix_cache_hits_total{engine=\"0\"} 5\n";
    let load = Metrics::parse(text, 0).load;
    assert_eq!((load.cache_use, load.prefix_queries, load.prefix_hits), (0.5, 10, 5));
}

#[test]
fn ranks_are_kept_apart() {
    let text = "process_start_time_seconds 7\n\
                vllm:num_requests_running{engine=\"0\"} 1\n\
                vllm:num_requests_running{engine=\"1\"} 2\n";
    assert_eq!(Metrics::parse(text, 0).load.running, 1);
    assert_eq!(Metrics::parse(text, 1).load.running, 2);
    assert_eq!(Metrics::parse(text, 2).load.running, 0);
    assert_eq!(Metrics::parse(text, 1).process_start, Some(7.0));
    // A process with one rank may number it as it likes.
    assert_eq!(Metrics::parse("vllm:num_requests_running{engine=\"0\"} 1\n", 3).load.running, 1);
}

#[test]
fn numbers_out_of_all_bounds_are_clamped() {
    let names = [
        "num_requests_running",
        "num_requests_waiting",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "time_to_first_token_seconds_sum",
        "time_to_first_token_seconds_count",
    ];
    let series = |name: &str| format!("vllm:{name}{{a=\"1\"}} 1.7e308\nvllm:{name}{{a=\"2\"}} 1.7e308\n");
    let load = Metrics::parse(&names.map(series).concat(), 0).load;
    assert_eq!((load.running, load.waiting), (u32::MAX, u32::MAX));
    assert_eq!((load.prefix_queries, load.prefix_hits, load.ttft_count), (u64::MAX, u64::MAX, u64::MAX));
    assert_eq!(load.ttft_sum_s, f64::MAX);
    // 32 bits do not wrap: this would be 1.
    assert_eq!(Metrics::parse("vllm:num_requests_running 4294967297\n", 0).load.running, u32::MAX);
    for start in ["NaN", "+Inf"] {
        assert_eq!(Metrics::parse(&format!("process_start_time_seconds {start}\n"), 0).process_start, None);
    }
}

#[test]
fn texts_and_lists_are_bounded() {
    let long = "x".repeat(257);
    let many: Vec<_> = (0..2_000).map(|it| it.to_string()).collect();
    let text = format!(
        "vllm:cache_config_info{{prefix_caching_hash_algo=\"{long}\"}} 1\n\
         vllm:lora_requests_info{{running_lora_adapters=\"a,{long}\",waiting_lora_adapters=\"{}\"}} 1\n",
        many.join(",")
    );
    let metrics = Metrics::parse(&text, 0);
    assert_eq!(metrics.cache.algorithm, None);
    assert_eq!(metrics.load.running_adapters, ["a"]);
    assert_eq!(metrics.load.waiting_adapters.len(), 1_024);
}

#[test]
fn labels_may_hold_anything() {
    let text = "vllm:cache_config_info{odd=\"} , \\\" \\\\ \\n\",block_size=\"32\",num_gpu_blocks=\"None\"} 1.0 123\n";
    let cache = Metrics::parse(text, 0).cache;
    assert_eq!((cache.block_size, cache.num_gpu_blocks), (Some(32), None));
}

#[test]
fn what_is_no_metric_is_passed_over() {
    for text in [
        "",
        "<html>",
        "vllm:x",
        "vllm:x{a=\"b",
        "vllm:x{a=\"b\\",
        "vllm:x{a} 1",
        "vllm:x{} nothing",
        "# vllm:x 1",
    ] {
        assert_eq!(Metrics::parse(text, 0), Metrics::default(), "{text}");
    }
    let odd = "vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\nvllm:kv_cache_usage_perc +Inf\n";
    let load = Metrics::parse(odd, 0).load;
    assert_eq!((load.running, load.waiting, load.cache_use), (0, 0, 1.0));
}
