//! Which replica keeps which response. vLLM keeps responses of `/v1/responses` in the memory of the process that made
//! them: whatever names one can be answered there and nowhere else.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::{Duration, Instant},
};

use crate::replicas::ReplicaId;

use crate::request::{Api, json};

/// Bounds of [`Pins`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bounds {
    /// Most pins, about 150 bytes each.
    pub most: usize,
    /// How long one is kept after its last use.
    pub expiry: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { most: 100_000, expiry: Duration::from_secs(3_600) }
    }
}

/// What is pinned to a replica.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum What<'a> {
    /// A response, by its id.
    Response(&'a str),
    /// A client's session, by the value of its header: the replica of its last response.
    Session(&'a str),
}

/// A replica, as it was when it answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pin {
    /// The replica.
    pub replica: ReplicaId,
    /// A digest of its incarnation, see [`Pins::digest`]; `None` where no agent had spoken of it.
    pub incarnation: Option<u64>,
}

/// Pins, forgotten by age and by bound, the longest unused first. Keys are kept as seeded digests: what clients send has
/// no weight here, and nobody can look for two that are the same.
#[derive(Debug)]
pub struct Pins {
    bounds: Bounds,
    seed: u64,
    pins: BTreeMap<u64, Kept>,
    /// Keys by their turn: the first was not used for the longest time.
    order: BTreeMap<u64, u64>,
    turn: u64,
}

#[derive(Debug)]
struct Kept {
    pin: Pin,
    used: Instant,
    turn: u64,
}

impl Pins {
    /// None yet.
    #[must_use]
    pub const fn new(bounds: Bounds, seed: u64) -> Self {
        Self { bounds, seed, pins: BTreeMap::new(), order: BTreeMap::new(), turn: 0 }
    }

    /// From now on this is there. `now` must not go back.
    pub fn learn(&mut self, what: What<'_>, pin: Pin, now: Instant) {
        let key = self.key(what);
        self.forget(key);
        self.keep(key, pin, now);
        while let Some((_, oldest)) = self.order.first_key_value() {
            let oldest = *oldest;
            if self.pins.len() <= self.bounds.most && !self.is_expired(oldest, now) {
                break;
            }
            self.forget(oldest);
        }
    }

    /// Where this is; to ask is a use.
    pub fn find(&mut self, what: What<'_>, now: Instant) -> Option<Pin> {
        let key = self.key(what);
        let expired = self.is_expired(key, now);
        let found = self.forget(key).filter(|_| !expired)?;
        self.keep(key, found, now);
        Some(found)
    }

    /// A short stand-in for a text, for comparison only.
    #[must_use]
    pub fn digest(&self, text: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, text).hash(&mut hasher);
        hasher.finish()
    }

    /// How many there are, expired ones included until they are in the way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pins.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pins.is_empty()
    }

    fn key(&self, what: What<'_>) -> u64 {
        let (kind, text) = match what {
            What::Response(text) => (0_u8, text),
            What::Session(text) => (1, text),
        };
        let mut hasher = DefaultHasher::new();
        (self.seed, kind, text).hash(&mut hasher);
        hasher.finish()
    }

    fn is_expired(&self, key: u64, now: Instant) -> bool {
        self.pins.get(&key).is_some_and(|it| self.bounds.expiry < now.saturating_duration_since(it.used))
    }

    fn keep(&mut self, key: u64, pin: Pin, now: Instant) {
        self.turn += 1;
        self.order.insert(self.turn, key);
        self.pins.insert(key, Kept { pin, used: now, turn: self.turn });
    }

    fn forget(&mut self, key: u64) -> Option<Pin> {
        let kept = self.pins.remove(&key)?;
        self.order.remove(&kept.turn);
        Some(kept.pin)
    }
}

/// What a request to `/v1/responses`, or beneath, has to do with responses that replicas keep.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Links {
    /// The response without which it can't be answered.
    pub needs: Option<String>,
    /// The id that its own response will have, where the client has chosen it (vLLM's field `request_id`).
    pub chosen_id: Option<String>,
    /// Whether its response is one that later requests may name.
    pub is_kept: bool,
    /// The client's session.
    pub session: Option<String>,
}

impl Links {
    /// Of a request, of whose body only a beginning may be there; `path` has no query string. `None` for other routes.
    #[must_use]
    pub fn of(path: &str, body: &[u8], session: Option<String>) -> Option<Self> {
        let beneath = path.strip_prefix(Api::Responses.path())?;
        if beneath.is_empty() {
            let mut links = Self { is_kept: true, session, ..Self::default() };
            json::for_each_member(body, |name, value| match name {
                b"\"previous_response_id\"" => links.needs = serde_json::from_slice(value).ok().flatten(),
                b"\"request_id\"" => links.chosen_id = serde_json::from_slice(value).ok(),
                b"\"store\"" => links.is_kept = ![b"false".as_slice(), b"null"].contains(&value),
                _ => (),
            });
            return Some(links);
        }
        // `GET /v1/responses/{id}` has no body; what has one is another route, as `/v1/responses/render`.
        let beneath = beneath.strip_prefix('/')?;
        let id = match beneath.strip_suffix("/cancel") {
            Some(id) => id,
            None if body.is_empty() => beneath,
            None => return None,
        };
        let is_plain = !id.is_empty() && !id.contains(['/', '%']);
        is_plain.then(|| Self { needs: Some(id.to_owned()), session, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { most: 3, expiry: Duration::from_secs(10) };

    fn pin(port: u16) -> Pin {
        Pin { replica: ReplicaId::of(port.into()), incarnation: None }
    }

    #[test]
    fn responses_and_sessions_are_apart_and_the_last_word_counts() {
        let now = crate::testing::start();
        let mut pins = Pins::new(BOUNDS, 7);
        pins.learn(What::Response("a"), pin(1), now);
        pins.learn(What::Session("a"), pin(2), now);
        pins.learn(What::Session("a"), pin(3), now);
        assert_eq!(pins.find(What::Response("a"), now), Some(pin(1)));
        assert_eq!(pins.find(What::Session("a"), now), Some(pin(3)));
        assert_eq!(pins.find(What::Response("b"), now), None);
        assert_eq!((pins.len(), pins.order.len()), (2, 2));
    }

    #[test]
    fn what_is_unused_is_forgotten_by_age() {
        let start = crate::testing::start();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut pins = Pins::new(BOUNDS, 7);
        pins.learn(What::Response("a"), pin(1), start);
        pins.learn(What::Response("b"), pin(1), start);
        assert!(pins.find(What::Response("a"), after(10)).is_some(), "a use");
        assert!(pins.find(What::Response("a"), after(20)).is_some(), "as it was used");
        assert_eq!(pins.find(What::Response("b"), after(11)), None);
        pins.learn(What::Response("c"), pin(1), after(31));
        assert_eq!((pins.len(), pins.order.len()), (1, 1), "a is too old by now");
    }

    #[test]
    fn is_bounded_and_the_longest_unused_goes_first() {
        let now = crate::testing::start();
        let mut pins = Pins::new(BOUNDS, 7);
        for id in ["a", "b", "c"] {
            pins.learn(What::Response(id), pin(1), now);
        }
        pins.find(What::Response("a"), now);
        pins.learn(What::Response("d"), pin(1), now);
        let found = ["a", "b", "c", "d"].map(|id| pins.find(What::Response(id), now).is_some());
        assert_eq!(found, [true, false, true, true]);
        for n in 0..100 {
            pins.learn(What::Session(&n.to_string()), pin(1), now);
            assert!(pins.len() <= 3 && pins.order.len() <= 3);
        }
    }

    #[test]
    fn links_are_read_from_path_and_body() {
        let needs = |path, body: &str| Links::of(path, body.as_bytes(), None).map(|it| it.needs);
        let some = |id: &str| Some(Some(id.to_owned()));
        assert_eq!(
            needs("/v1/responses", r#"{"input": "x", "previous_response_id": "r\u0031"}"#),
            some("r1")
        );
        assert_eq!(needs("/v1/responses", r#"{"previous_response_id": "r1", "input": "cut "#), some("r1"));
        for body in [
            "",
            "no json",
            "{}",
            r#"{"previous_response_id": null}"#,
            r#"{"a": {"previous_response_id": "r"}}"#,
        ] {
            assert_eq!(needs("/v1/responses", body), Some(None), "{body}");
        }
        assert_eq!(needs("/v1/responses/r1", ""), some("r1"));
        assert_eq!(needs("/v1/responses/r1/cancel", ""), some("r1"));
        assert_eq!(needs("/v1/responses/r1/cancel", "{}"), some("r1"));
        for path in
            ["/v1/responses/", "/v1/responses/a/b", "/v1/responses/%20", "/v1/responsesx", "/v1/completions"]
        {
            assert_eq!(needs(path, ""), None, "{path}");
        }
        assert_eq!(needs("/v1/responses/render", "{}"), None);

        let of = |body: &str| Links::of("/v1/responses", body.as_bytes(), Some("s".to_owned())).unwrap();
        let own = of(r#"{"request_id": "mine", "store": true}"#);
        assert_eq!(
            (own.chosen_id.as_deref(), own.is_kept, own.session.as_deref()),
            (Some("mine"), true, Some("s"))
        );
        assert!(!of(r#"{"store": false}"#).is_kept);
        assert_eq!(of(r#"{"request_id": 5}"#).chosen_id, None);
    }
}
