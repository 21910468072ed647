//! What follows a value: attributes, items, calls, filters and tests.

use super::{
    expression::{Parser, Written},
    lexer::Kind,
    literal,
    macros::Macro,
    names,
};
use crate::prompts::python::attributes;

impl Parser<'_, '_> {
    /// Attributes, items and calls behind a value.
    pub(super) fn postfix(&mut self, mut out: String) -> Written {
        loop {
            if [".", "[", "("].iter().any(|sign| self.is(sign)) {
                self.link()?;
            }
            if self.skip(".") {
                out = self.attribute(out)?;
            } else if self.skip("[") {
                out = self.subscript(out)?;
            } else if self.is("(") {
                out = self.call(out)?;
            } else {
                return Ok(out);
            }
        }
    }

    fn attribute(&mut self, of: String) -> Written {
        if self.kind() == Some(Kind::Number) {
            return Ok(format!("({of}|{}({}))", names::ITEM, literal::number(self.next_text())?));
        }
        let name = self.name()?;
        if of == "loop" && name.starts_with("depth") && self.outline.is_deep_in_recursion() {
            return Err("the depth of a loop inside another one that is recursive".into());
        }
        let of_macro = self.outline.macros.get(&of).and_then(|it| it.attribute(name, &of));
        if let Some(literal) = of_macro.filter(|_| !self.is("(")) {
            return Ok(literal);
        }
        if attributes::is_attribute(name) && !self.is("(") && of != "loop" {
            return Ok(format!("({of}|{}(\"{name}\"))", names::ATTR));
        }
        Ok(format!("{of}.{name}"))
    }

    fn subscript(&mut self, of: String) -> Written {
        let mut parts = vec![None];
        while !self.skip("]") {
            if self.skip(":") {
                parts.push(None);
            } else if let Some(part @ None) = parts.last_mut() {
                *part = Some(self.expression()?);
            } else {
                return Err(format!("unexpected {:?} in brackets", self.text()));
            }
        }
        if let [key] = parts.as_slice() {
            let key = key.as_ref().ok_or("nothing between brackets")?;
            return Ok(format!("({of}|{}({key}))", names::ITEM));
        }
        if parts.len() > 3 {
            return Err("a slice of more than three parts".into());
        }
        parts.resize(3, None);
        let parts: Vec<String> =
            parts.into_iter().map(|part| part.unwrap_or_else(|| "none".into())).collect();
        Ok(format!("({of}|{}({}))", names::SLICE, parts.join(",")))
    }

    fn call(&mut self, of: String) -> Written {
        self.expect("(")?;
        if let Some(called) = self.outline.macros.get(&of) {
            let arguments = self.arguments_of(called)?;
            return Ok(format!("{of}({arguments})"));
        }
        let arguments = self.arguments()?;
        // A loop that calls itself goes over a list too.
        Ok(match of.as_str() {
            "loop" => format!("loop({}|{})", self.filterable(arguments), names::LOOP),
            _ => format!("{of}({arguments})"),
        })
    }

    /// Arguments of a call, the bracket behind them included.
    fn arguments(&mut self) -> Written {
        self.items(")", |parser| {
            for sign in ["**", "*"] {
                if parser.skip(sign) {
                    return Ok(format!("{sign}{}", parser.expression()?));
                }
            }
            if parser.kind() == Some(Kind::Name) && parser.follows("=") {
                let name = parser.next_text();
                parser.at += 1;
                return Ok(format!("{name}={}", parser.expression()?));
            }
            parser.expression()
        })
    }

    /// Arguments of a macro of the template.
    fn arguments_of(&mut self, called: &Macro) -> Written {
        let defaults = &called.parameters;
        let mut place = 0;
        let mut items = Vec::new();
        let (mut more, mut others) = (Vec::new(), Vec::new());
        let mut is_first = true;
        while !self.skip(")") {
            if !std::mem::take(&mut is_first) {
                self.expect(",")?;
                if self.skip(")") {
                    break;
                }
            }
            let has_default = |name: &str| defaults.iter().any(|(it, has)| it == name && *has);
            let checked = |parser: &Self, written: String, is_needed: bool| match is_needed {
                true => format!("{}|{}", parser.filterable(written), names::GIVEN),
                false => written,
            };
            if self.is("*") || self.is("**") {
                if called.catches() {
                    return Err("unpacked arguments of a macro that reads varargs or kwargs".into());
                }
                let sign = self.next_text();
                items.push(format!("{sign}{}", self.expression()?));
            } else if self.kind() == Some(Kind::Name) && self.follows("=") {
                let name = self.next_text();
                self.at += 1;
                let written = self.expression()?;
                // To Jinja a parameter that has a value already is none any more.
                let is_parameter =
                    defaults.iter().skip(if called.kwargs { place } else { 0 }).any(|(it, _)| it == name);
                if !called.catches() || is_parameter {
                    items.push(format!("{name}={}", checked(self, written, has_default(name))));
                } else if called.kwargs && name != "caller" {
                    others.push(format!("\"{name}\": {written}"));
                } else {
                    return Err(format!("{name} is no argument of the macro"));
                }
            } else if called.varargs && defaults.len() <= place {
                more.push(self.expression()?);
            } else if called.catches() && defaults.len() <= place {
                return Err("too many arguments of a macro".into());
            } else {
                let written = self.expression()?;
                let is_needed = defaults.get(place).is_some_and(|(_, has)| *has);
                items.push(checked(self, written, is_needed));
                place += 1;
            }
        }
        if !more.is_empty() {
            let comma = if more.len() == 1 { "," } else { "" };
            items.push(format!("varargs=({}{comma})", more.join(", ")));
        }
        if !others.is_empty() {
            items.push(format!("kwargs={{{}}}", others.join(", ")));
        }
        Ok(items.join(", "))
    }

    /// Filters and tests behind a value; in a `filter` tag the first one has no sign before it.
    pub(super) fn filters(&mut self, of: String) -> Written {
        let mut out = of;
        let mut is_first = out.is_empty();
        loop {
            if std::mem::take(&mut is_first) || self.skip("|") {
                self.link()?;
                let name = self.name()?;
                out = format!("{out}|{name}");
                if self.skip("(") {
                    out = format!("{out}({})", self.arguments()?);
                }
            } else if self.skip("is") {
                self.link()?;
                out = self.test(out)?;
            } else {
                return Ok(out);
            }
        }
    }

    fn test(&mut self, of: String) -> Written {
        let not = if self.skip("not") { "not " } else { "" };
        let name = self.name()?;
        let is_word = ["else", "or", "and", "if"].iter().any(|word| self.is(word));
        let begins_value = match self.kind() {
            Some(Kind::Name) => {
                !is_word && !self.is("is") && !self.is("in") && !self.is("not") && !self.is("recursive")
            }
            Some(Kind::Text | Kind::Number) => true,
            Some(Kind::Sign) => self.is("[") || self.is("{"),
            None => false,
        };
        let argument = if self.skip("(") {
            format!("({})", self.arguments()?)
        } else if begins_value {
            let value = self.primary()?;
            format!("({})", self.postfix(value)?)
        } else {
            String::new()
        };
        Ok(format!("{of} is {not}{name}{argument}"))
    }
}
