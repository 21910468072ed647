//! Generates the feed's messages, and with the `grpc` feature its client and server, with no protoc to install.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=feed.proto");
    let files = protox::compile(["feed.proto"], ["."])?;
    let grpc = std::env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure().build_client(grpc).build_server(grpc).compile_fds(files)?;
    Ok(())
}
