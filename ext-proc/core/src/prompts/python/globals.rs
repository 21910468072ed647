//! Functions that Jinja gives every template, where the engine's own take other arguments.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use minijinja::{
    Error, ErrorKind, State,
    value::{Kwargs, Object, Rest, Value, ValueKind, from_args},
};

/// `dict(entries, **more)`: of a dictionary or of pairs.
pub(crate) fn dict(entries: Option<Value>, more: Kwargs) -> Result<Value, Error> {
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    let entries = entries.unwrap_or_default();
    for item in entries.try_iter()? {
        pairs.push(match entries.kind() {
            ValueKind::Map => (item.clone(), entries.get_item(&item)?),
            _ if item.len() == Some(2) => {
                let mut pair = item.try_iter()?;
                (pair.next().unwrap_or_default(), pair.next().unwrap_or_default())
            }
            _ => return Err(Error::new(ErrorKind::InvalidOperation, "dict: pairs are needed")),
        });
    }
    for name in more.args() {
        pairs.push((Value::from(name), more.get(name)?));
    }
    Ok(Value::from_pairs(pairs))
}

/// `cycler(a, b, …)`: an object that gives one after the other, again and again.
pub(crate) fn cycler(items: Rest<Value>) -> Result<Value, Error> {
    if items.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "cycler: at least one item has to be provided"));
    }
    Ok(Value::from_object(Cycler { items: items.0, next: AtomicUsize::new(0) }))
}

#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    next: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        self.items[self.next.load(Ordering::Relaxed)].clone()
    }
}

impl Object for Cycler {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        from_args::<()>(args)?;
        match method {
            "next" => {
                let current = self.current();
                let next = (self.next.load(Ordering::Relaxed) + 1) % self.items.len();
                self.next.store(next, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.next.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}
