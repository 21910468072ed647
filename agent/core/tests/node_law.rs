//! Whatever happens, in whatever order: a server that hears everything holds what the engines hold.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and starts at some time"
)]

mod world;

use kvpick_proto::words::ServerMessage;
use proptest::prelude::*;
use world::{UNIX_MS, World};

#[derive(Clone, Debug)]
enum Op {
    Store {
        engine: usize,
        chain: u64,
        from: u64,
        len: u64,
    },
    Remove {
        engine: usize,
        chain: u64,
        from: u64,
        len: u64,
    },
    /// A block goes, that is announced, and comes back.
    Flicker {
        engine: usize,
        chain: u64,
        at: u64,
    },
    Clear {
        engine: usize,
    },
    Restart {
        engine: usize,
    },
    Flush,
    Hear {
        server: usize,
    },
    Reconnect {
        server: usize,
    },
    AskForCopy {
        server: usize,
        engine: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0_usize..2, 0_u64..5, 0_u64..6, 1_u64..9)
            .prop_map(|(engine, chain, from, len)| Op::Store { engine, chain, from, len }),
        6 => (0_usize..2, 0_u64..5, 0_u64..9, 1_u64..4)
            .prop_map(|(engine, chain, from, len)| Op::Remove { engine, chain, from, len }),
        1 => (0_usize..2).prop_map(|engine| Op::Clear { engine }),
        1 => (0_usize..2).prop_map(|engine| Op::Restart { engine }),
        6 => Just(Op::Flush),
        9 => (0_usize..2).prop_map(|server| Op::Hear { server }),
        1 => (0_usize..2).prop_map(|server| Op::Reconnect { server }),
        2 => (0_usize..2, 0_usize..2).prop_map(|(server, engine)| Op::AskForCopy { server, engine }),
        4 => (0_usize..2, 0_u64..5, 0_u64..9).prop_map(|(engine, chain, at)| Op::Flicker { engine, chain, at }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Whatever happens, in whatever order: a server that hears everything holds what the engines hold.
    #[test]
    fn servers_end_up_in_step(ops in proptest::collection::vec(op(), 0..80)) {
        // Few keys in a message, so that copies are long and changes come in parts.
        let mut world = World::with_messages_of(6, 2);
        let mut servers = [world.server(), world.server()];
        for op in ops {
            match op {
                Op::Store { engine, chain, from, len } => world.store(engine, chain, from, len),
                Op::Remove { engine, chain, from, len } => {
                    let (handle, wire) = &mut world.engines[engine];
                    let frames = wire.removed(chain, from, len);
                    world.node.engine(*handle).unwrap().on_frames(frames, world.now, UNIX_MS).unwrap();
                }
                Op::Flicker { engine, chain, at } => {
                    let (handle, wire) = &mut world.engines[engine];
                    let frames = wire.removed(chain, at, 1);
                    world.node.engine(*handle).unwrap().on_frames(frames, world.now, UNIX_MS).unwrap();
                    world.flush();
                    world.store(engine, chain, at, 1);
                    world.flush();
                }
                Op::Clear { engine } => {
                    let (handle, wire) = &mut world.engines[engine];
                    let frames = wire.cleared();
                    world.node.engine(*handle).unwrap().on_frames(frames, world.now, UNIX_MS).unwrap();
                }
                Op::Restart { engine } => {
                    world.engines[engine].1.restart();
                    world.store(engine, 3, 0, 2);
                }
                Op::Flush => world.flush(),
                Op::Hear { server } => {
                    world.hear_one(servers[server]);
                }
                Op::Reconnect { server } => {
                    world.node.close(servers[server]);
                    servers[server] = world.server();
                }
                Op::AskForCopy { server, engine } => {
                    let handle = world.engines[engine].0;
                    world.say(servers[server], ServerMessage::CopyRequest(handle));
                }
            }
        }
        world.assert_in_step(servers[0]);
        world.assert_in_step(servers[1]);
    }
}
