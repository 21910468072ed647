//! Attributes that values have by their type, and not as items.

use minijinja::value::{Tuple, Value};

use super::{
    objects::{Method, Range, Type, type_of},
    operators, print,
};

const OF_DICT: &[&str] = &["copy", "fromkeys", "get", "items", "keys", "values"];
const OF_LIST: &[&str] = &["copy", "count", "index"];
const OF_NUMBER: &[&str] = &[
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "from_bytes",
    "fromhex",
    "hex",
    "is_integer",
    "to_bytes",
];
const PARTS_OF_NUMBER: &[&str] = &["denominator", "imag", "numerator", "real"];
const PARTS_OF_RANGE: &[&str] = &["start", "step", "stop"];
const OF_TEXT: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

/// Methods that change what they are of: Jinja's sandbox hides them.
const CHANGING: &[&str] = &[
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
];

/// Attribute of macros that the engine has as a list.
const ARGUMENTS: &str = "arguments";

/// Whether some type has a method or attribute of that name.
pub(crate) fn is_attribute(name: &str) -> bool {
    let all = [OF_DICT, OF_LIST, OF_NUMBER, PARTS_OF_NUMBER, PARTS_OF_RANGE, OF_TEXT, CHANGING, &[ARGUMENTS]];
    all.iter().any(|names| names.contains(&name))
}

/// The attribute that a value has by its type, and not as an item.
pub(crate) fn attribute(value: &Value, name: &str) -> Option<Value> {
    let changing: &[&str] = match type_of(value) {
        Type::Dict => &["clear", "pop", "popitem", "setdefault", "update"],
        Type::List => &["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"],
        _ => &[],
    };
    if changing.contains(&name) {
        return Some(Value::UNDEFINED);
    }
    let methods = match type_of(value) {
        Type::Dict => OF_DICT,
        Type::List => OF_LIST,
        Type::Tuple | Type::Range => &OF_LIST[1..],
        Type::Text => OF_TEXT,
        Type::Number | Type::BigInt => OF_NUMBER,
        _ => &[],
    };
    if methods.contains(&name) {
        return Some(Value::from_object(Method { of: value.clone(), name: name.to_owned() }));
    }
    match (type_of(value), name) {
        (Type::Number, "real" | "numerator") if print::float(value).is_none() || name == "real" => {
            operators::pos(value).ok()
        }
        (Type::Number, "imag") if print::float(value).is_some() => Some(Value::from(0.0)),
        (Type::Number, "imag") => Some(Value::from(0)),
        (Type::Number, "denominator") if print::float(value).is_none() => Some(Value::from(1)),
        (Type::Range, "start" | "step" | "stop") => {
            let range = value.downcast_object_ref::<Range>()?;
            Some(Value::from(match name {
                "start" => range.start,
                "step" => range.step,
                _ => range.stop,
            }))
        }
        (Type::Macro, ARGUMENTS) => {
            let names: Vec<Value> = value.get_attr(ARGUMENTS).ok()?.try_iter().ok()?.collect();
            Some(Value::from(Tuple::from(names)))
        }
        _ => None,
    }
}
