//! vLLM's version, as far as its naming depends on it.

use kvpick_proto::naming::ExtraKeyShape;

/// Major, minor and patch number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Version(pub(super) u32, pub(super) u32, pub(super) u32);

impl Version {
    /// `0.32.0`, `0.32.0+cpu`, `0.32.1rc1.dev5`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| {
            let digits = part.find(|it: char| !it.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        });
        Some(Self(parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
    }

    pub(super) fn shape(self) -> ExtraKeyShape {
        match self {
            it if it >= Self(0, 31, 0) => ExtraKeyShape::Tagged,
            it if it >= Self(0, 19, 0) => ExtraKeyShape::BareWithOffset,
            _ => ExtraKeyShape::Bare,
        }
    }

    /// Whether its events name the adapter of a request.
    pub(super) fn names_adapters(self) -> bool {
        self >= Self(0, 14, 0)
    }

    /// Whether its events leave out what entered a hash besides tokens and adapter.
    pub(super) fn hides_extra_keys(self) -> bool {
        self < Self(0, 17, 0)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}
