//! `tojson` as transformers defines it: Python's `json.dumps` with its own default for ASCII.

use std::fmt::Write;

use minijinja::{
    Error, ErrorKind,
    value::{Kwargs, Rest, Value, ValueKind},
};

use super::{
    objects::{Type, type_of},
    print::{float, float_repr, str},
};
use crate::prompts::template::LONGEST_TEXT;

/// The filter: `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`, positions as in Python.
pub(crate) fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let arg = |index: usize, name: &str| -> Result<Value, Error> {
        match args.get(index) {
            Some(value) => Ok(value.clone()),
            None => Ok(kwargs.get::<Option<Value>>(name)?.unwrap_or_default()),
        }
    };
    let ensure_ascii = arg(0, "ensure_ascii")?.is_true();
    let indent = arg(1, "indent")?;
    let separators = arg(2, "separators")?;
    let sort_keys = arg(3, "sort_keys")?.is_true();
    kwargs.assert_all_used()?;
    let indent = match indent.kind() {
        ValueKind::Undefined | ValueKind::None => None,
        ValueKind::String => Some(str(&indent)?),
        _ => {
            let width = i64::try_from(indent)?.clamp(0, MAX_INDENT);
            Some(" ".repeat(usize::try_from(width).unwrap_or_default()))
        }
    };
    let (item, key) = match separators.kind() {
        ValueKind::Undefined | ValueKind::None if indent.is_some() => (",".into(), ": ".into()),
        ValueKind::Undefined | ValueKind::None => (", ".into(), ": ".into()),
        _ => (str(&separators.get_item_by_index(0)?)?, str(&separators.get_item_by_index(1)?)?),
    };
    let mut writer = Writer { out: String::new(), ensure_ascii, indent, item, key, sort_keys };
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// Values in one another beyond which a template cannot mean to write them.
const DEEPEST: usize = 300;

/// Spaces per level beyond which a template cannot mean it.
const MAX_INDENT: i64 = 64;

struct Writer {
    out: String,
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEEPEST || self.out.len() > LONGEST_TEXT {
            let problem = "a value too long or too deep to be written as JSON";
            return Err(Error::new(ErrorKind::BadSerialization, problem));
        }
        match type_of(value) {
            Type::None => self.out.push_str("null"),
            Type::Number if value.kind() == ValueKind::Bool => {
                self.out.push_str(if value.is_true() { "true" } else { "false" });
            }
            Type::Number => self.number(value),
            Type::Text => self.string(value.as_str().unwrap_or_default()),
            Type::List | Type::Tuple => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list('[', ']', &items, depth, |writer, item| writer.value(item, depth + 1))?;
            }
            Type::Dict => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list('{', '}', &keys, depth, |writer, key| {
                    writer.object_key(key)?;
                    let between = writer.key.clone();
                    writer.out.push_str(&between);
                    writer.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            Type::BigInt => self.out.push_str(&value.to_string()),
            _ => {
                let problem = format!("{} is not JSON serializable", value.kind());
                return Err(Error::new(ErrorKind::BadSerialization, problem));
            }
        }
        Ok(())
    }

    fn list(
        &mut self,
        open: char,
        close: char,
        items: &[Value],
        depth: usize,
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                let between = self.item.clone();
                self.out.push_str(&between);
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    /// A new line at `depth`, where there is an indent at all.
    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn object_key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            kind => return Err(Error::new(ErrorKind::BadSerialization, format!("{kind} as a JSON key"))),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        match float(value) {
            Some(float) if float.is_nan() => self.out.push_str("NaN"),
            Some(float) if float.is_infinite() => {
                self.out.push_str(if float > 0.0 { "Infinity" } else { "-Infinity" });
            }
            Some(float) => self.out.push_str(&float_repr(float)),
            None => _ = write!(self.out, "{value}"),
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for char in text.chars() {
            match char {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..='\x1f' => _ = write!(self.out, "\\u{:04x}", u32::from(char)),
                ' '..='~' => self.out.push(char),
                char if self.ensure_ascii => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                char => self.out.push(char),
            }
        }
        self.out.push('"');
    }
}
