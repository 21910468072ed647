#!/bin/sh
# The walls between crates, proved by what they depend on:
#   - the cores do no input or output: nothing that could is below them;
#   - one crate compiles envoy-types, which takes minutes;
#   - the agent's image has no tokenizer in it.
set -eu

failed=0

below() { # crates that the packages named by the arguments link
    cargo tree --locked --edges normal --prefix none --format '{p}' "$@" | cut -d ' ' -f 1 | sort -u
}

refuse() { # what, pattern, list
    if found=$(printf '%s\n' "$3" | grep -Ex "$2"); then
        echo "walls: $1:" $found >&2
        failed=1
    fi
}

cores=$(below --package kvpick-agent-core --package kvpick-core)
refuse 'a core depends on' '(tokio|tonic|zmq|hyper|kube|prometheus|reqwest|axum|moka)(-.*)?' "$cores"

agent=$(below --package kvpick-agent)
refuse 'the agent depends on' '(tokenizers|envoy-types|minijinja)' "$agent"

users=$(cargo tree --locked --workspace --edges normal,build,dev --invert envoy-types --depth 1 --prefix depth --format '{p}' |
    sed -n 's/^1\([^ ]*\) .*/\1/p' | sort -u)
if [ "$users" != kvpick ]; then
    echo "walls: envoy-types is for kvpick alone, but these depend on it:" $users >&2
    failed=1
fi

exit $failed
