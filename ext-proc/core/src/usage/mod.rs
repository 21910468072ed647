//! What an answer says of itself as it passes: how many tokens its prompt had, how many the engine's cache saved, and
//! when its first event came. Nothing is held back for it, and what is kept does not grow with the answer.

mod count;
mod scan;

pub use count::Usage;

use scan::Scan;

/// Reads one answer. Bytes are looked at once, in the pieces in which they come.
#[derive(Debug)]
pub struct Reader {
    scan: Scan,
    form: Form,
    usage: Usage,
}

#[derive(Debug)]
enum Form {
    /// One JSON value.
    Json,
    /// Server-sent events (HTML standard, "Interpreting an event stream").
    Events(Line),
}

/// Where in an event stream the next byte stands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Line {
    /// At the beginning of a line, so many bytes of `data:` into it.
    Name(u8),
    /// Behind `data:`, where one space may follow.
    Space,
    /// In a line of data.
    Data,
    /// In a line of something else.
    Other,
    /// Behind a carriage return, which may be one half of a line's end.
    #[default]
    Start,
}

impl Line {
    /// Behind that end of a line.
    const fn behind(end: u8) -> Self {
        if end == b'\r' { Self::Start } else { Self::Name(0) }
    }
}

const DATA: &[u8] = b"data:";

impl Reader {
    /// A reader of answers of that `content-type`; `None` for one that tells of no usage.
    #[must_use]
    pub fn of(content_type: &str) -> Option<Self> {
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        let form = if kind.eq_ignore_ascii_case("application/json") {
            Form::Json
        } else if kind.eq_ignore_ascii_case("text/event-stream") {
            Form::Events(Line::default())
        } else {
            return None;
        };
        Some(Self { scan: Scan::default(), form, usage: Usage::default() })
    }

    /// Takes the next piece. Returns whether an event ended in it that tells of tokens: it is a JSON object, and none of
    /// those with the whole response so far, which OpenAI's responses begin with before there is a token. Of an answer that
    /// is no event stream nothing is known of when tokens came.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let Form::Events(line) = &mut self.form else {
            self.scan.push(bytes, &mut self.usage);
            return false;
        };
        let mut has_event = false;
        let mut rest = bytes;
        while let Some((&byte, behind)) = rest.split_first() {
            match *line {
                Line::Data | Line::Other => {
                    let end = memchr::memchr2(b'\n', b'\r', rest);
                    let (text, next) = rest.split_at(end.unwrap_or(rest.len()));
                    if *line == Line::Data {
                        self.scan.push(text, &mut self.usage);
                    }
                    rest = match next.split_first() {
                        Some((&end, behind)) => {
                            *line = Line::behind(end);
                            behind
                        }
                        None => next,
                    };
                }
                Line::Start => {
                    *line = Line::Name(0);
                    rest = if byte == b'\n' { behind } else { rest };
                }
                Line::Name(_) if matches!(byte, b'\n' | b'\r') => {
                    if *line == Line::Name(0) {
                        has_event |= std::mem::take(&mut self.scan).is_of_tokens();
                    }
                    *line = Line::behind(byte);
                    rest = behind;
                }
                Line::Name(n) => {
                    if DATA.get(usize::from(n)) == Some(&byte) {
                        rest = behind;
                        *line =
                            if usize::from(n) + 1 == DATA.len() { Line::Space } else { Line::Name(n + 1) };
                    } else {
                        *line = Line::Other;
                    }
                }
                Line::Space => {
                    rest = if byte == b' ' { behind } else { rest };
                    *line = Line::Data;
                }
            }
        }
        has_event
    }

    /// What was told so far.
    #[must_use]
    pub const fn usage(&self) -> Usage {
        self.usage
    }
}

#[cfg(test)]
mod tests;
