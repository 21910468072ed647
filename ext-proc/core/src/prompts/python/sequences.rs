//! Jinja's filters of lists, as far as they differ from the engine's.

use minijinja::{
    Error, ErrorKind, State,
    value::{Kwargs, Rest, Value, ValueKind},
};

use super::{
    args::{Args, is_given},
    items, kept,
    objects::{Generator, Group, Type, type_of},
    operators, print,
    texts::like,
};

/// Filters of the engine whose result is a generator in Python, and under which name they are called here.
pub(crate) const GENERATORS: [(&str, &str); 7] = [
    ("map", "_map"),
    ("select", "_select"),
    ("reject", "_reject"),
    ("selectattr", "_selectattr"),
    ("rejectattr", "_rejectattr"),
    ("batch", "_batch"),
    ("slice", "_slices"),
];

/// Calls the engine's own filter, and gives what can be looped over once.
pub(crate) fn generator(
    state: &mut State<'_, '_>,
    filter: &str,
    args: Rest<Value>,
    names: Kwargs,
) -> Result<Value, Error> {
    let mut args = args.0;
    if names.args().next().is_some() {
        args.push(names.into());
    }
    let items: Vec<Value> = state.apply_filter(filter, &args)?.try_iter()?.collect();
    let items = match filter {
        "_batch" | "_slices" => {
            items.iter().map(|it| Ok(it.try_iter()?.collect())).collect::<Result<_, Error>>()?
        }
        _ => items,
    };
    Ok(Generator::of(items))
}

/// `items`: pairs of keys and values.
pub(crate) fn items(value: &Value) -> Result<Value, Error> {
    Ok(Generator::of(match type_of(value) {
        Type::Undefined => Vec::new(),
        Type::Dict => {
            let pair = |key: Value| Ok(Value::from((key.clone(), value.get_item(&key)?)));
            value.try_iter()?.map(pair).collect::<Result<_, Error>>()?
        }
        _ => return Err(Error::new(ErrorKind::InvalidOperation, "can only get item pairs from a mapping")),
    }))
}

/// `reverse`.
pub(crate) fn reverse(value: &Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return Ok(like(value, text.chars().rev().collect()));
    }
    let mut items: Vec<Value> = value.try_iter()?.collect();
    items.reverse();
    Ok(Generator::of(items))
}

/// `groupby`.
pub(crate) fn groupby(
    state: &mut State<'_, '_>,
    value: Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    kept::compared(state, &value)?;
    let names = ["attribute", "default", "case_sensitive"];
    let [attribute, default, case_sensitive] = Args::new(args, kwargs).bind(names)?;
    let given = [("attribute", attribute), ("default", default), ("case_sensitive", case_sensitive)];
    let kwargs: Kwargs = given.into_iter().filter(|(_, value)| !value.is_undefined()).collect();
    let group = |group: Value| {
        let (key, items) = (group.get_attr("grouper")?, group.get_attr("list")?.try_iter()?.collect());
        Ok(Value::from_object(Group(key, items)))
    };
    let groups = state.apply_filter("_groupby", &[value, kwargs.into()])?;
    groups.try_iter()?.map(group).collect::<Result<Value, Error>>()
}

/// `sum`.
pub(crate) fn sum(
    state: &mut State<'_, '_>,
    value: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let [attribute, start] = Args::new(args, kwargs).bind(["attribute", "start"])?;
    let mut total = if start.is_undefined() { Value::from(0) } else { start };
    let mut floats = 0;
    for item in value.try_iter()? {
        let item = if is_given(&attribute) { path(&item, &attribute)? } else { item };
        floats += usize::from(print::float(&item).is_some());
        total = operators::add(state, &total, &item)?;
        if total.kind() == ValueKind::String {
            return Err(Error::new(ErrorKind::InvalidOperation, "sum of texts"));
        }
    }
    // Newer versions of Python round such a sum once, older ones after every item.
    if floats > 1 && print::float(&total).is_some_and(|total| total.is_finite() && total.fract() != 0.0) {
        let mut total = 0.0;
        for item in value.try_iter()? {
            let item = if is_given(&attribute) { path(&item, &attribute)? } else { item };
            let item = f64::try_from(item).unwrap_or_default();
            let (sum, before) = (total + item, total);
            if sum - before != item || sum - item != before {
                return Err(Error::new(ErrorKind::InvalidOperation, "a sum of floats that is rounded"));
            }
            total = sum;
        }
    }
    Ok(total)
}

/// An attribute by its path, as `a.b`.
fn path(value: &Value, path: &Value) -> Result<Value, Error> {
    let Some(text) = path.as_str() else { return items::item(value, path) };
    let mut value = value.clone();
    for part in text.split('.') {
        let key = part.parse::<i64>().map_or_else(|_| Value::from(part), Value::from);
        value = items::item(&value, &key)?;
    }
    Ok(value)
}

/// `attr`: an attribute that is no item.
pub(crate) fn attr(value: &Value, name: &Value) -> Result<Value, Error> {
    let name = name.as_str().unwrap_or_default();
    Ok(match type_of(value) {
        Type::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        Type::Macro | Type::Loop | Type::Namespace => items::attr(value, name)?,
        _ if value.downcast_object_ref::<Group>().is_some() => value.get_attr(name)?,
        _ => super::attributes::attribute(value, name).unwrap_or_default(),
    })
}

/// `round`.
pub(crate) fn round(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [precision, method] = Args::new(args, kwargs.clone()).bind(["precision", "method"])?;
    let precision = super::args::int_or(&precision, 0)?;
    let precision = i32::try_from(precision).map_err(|_| Error::from(ErrorKind::InvalidOperation))?;
    let number = operators::pos(value)?;
    let float = print::float(&number);
    match method.as_str().unwrap_or("common") {
        "common" => match float {
            None if precision >= 0 => Ok(number),
            None => {
                // To the nearest multiple of a power of ten, of two equally near ones the even one.
                let unit = 10_i128.checked_pow(precision.unsigned_abs());
                let Some(unit) = unit else { return Ok(Value::from(0)) };
                let int = i128::try_from(number)?;
                let (below, rest) = (int.div_euclid(unit), int.rem_euclid(unit));
                let up = rest * 2 > unit || rest * 2 == unit && below % 2 != 0;
                operators::pos(&Value::from((below + i128::from(up)) * unit))
            }
            Some(float) => rounded(float, precision).map(Value::from),
        },
        method @ ("ceil" | "floor") => {
            let float = f64::try_from(number)?;
            let unit = 10_f64.powi(precision);
            let scaled = if method == "ceil" { (float * unit).ceil() } else { (float * unit).floor() };
            if precision < 0 || !scaled.is_finite() {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "round: such a precision is not supported",
                ));
            }
            // Python's integers have no zero with a sign.
            Ok(Value::from(if scaled == 0.0 { 0.0 } else { scaled } / unit))
        }
        _ => Err(Error::new(ErrorKind::InvalidOperation, "method must be common, ceil or floor")),
    }
}

/// Python's `round(float, precision)`: by the digits that the float has in full.
fn rounded(float: f64, precision: i32) -> Result<f64, Error> {
    if !float.is_finite() {
        return Ok(float);
    }
    let Ok(digits) = usize::try_from(precision) else {
        // To the nearest multiple of a power of ten, of two equally near ones the even one.
        let unit = 10_i128.checked_pow(precision.unsigned_abs()).filter(|_| float.abs() < 1e37);
        let unit = unit.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "round: such a precision"))?;
        let whole = float.abs().trunc() as i128;
        let (below, twice) = (whole / unit, whole % unit * 2);
        let is_half = twice == unit && float.fract() == 0.0;
        let up = twice > unit || twice == unit && !is_half || is_half && below % 2 == 1;
        return Ok((((below + i128::from(up)) * unit) as f64).copysign(float));
    };
    // The standard library writes a float exactly, of two equally near numbers the even one.
    format!("{float:.*}", digits.min(340)).parse().map_err(|_| Error::from(ErrorKind::InvalidOperation))
}

/// `abs`.
pub(crate) fn abs(value: &Value) -> Result<Value, Error> {
    let number = operators::pos(value)?;
    match print::float(&number) {
        Some(float) => Ok(Value::from(float.abs())),
        None if i128::try_from(number.clone())? < 0 => operators::neg(&number),
        None => Ok(number),
    }
}
