//! Expressions, by Jinja's grammar.

use super::{
    lexer::{Kind, Token, Tokens},
    literal,
    macros::Macro,
    names,
    outline::Outline,
};

/// Reads the words of a tag and writes expressions.
///
/// What the functions from [`Parser::sum`] down answer may be followed by a filter as it is.
pub(super) struct Parser<'p, 't> {
    tokens: &'p Tokens<'t>,
    pub(super) outline: &'p Outline,
    pub(super) at: usize,
    depth: usize,
    /// Operators and the like that were read.
    links: usize,
}

/// Expressions in one another beyond which a template cannot mean it.
const DEEPEST: usize = 100;

/// Operators in one tag beyond which a template cannot mean it: the engine takes them one inside the other.
const MOST_LINKS: usize = 1_000;

pub(super) type Written = Result<String, String>;

impl<'p, 't> Parser<'p, 't> {
    pub(super) fn new(tokens: &'p Tokens<'t>, outline: &'p Outline) -> Self {
        Self { tokens, outline, at: 0, depth: 0, links: 0 }
    }

    /// That nothing is left.
    pub(super) fn finish(&self) -> Result<(), String> {
        if self.at_end() { Ok(()) } else { Err(format!("unexpected {}", self.text())) }
    }

    pub(super) fn at_end(&self) -> bool {
        self.tokens.list.len() <= self.at
    }

    /// Number of words that were read.
    pub(super) fn place(&self) -> usize {
        self.at
    }

    /// The words that were read since that place.
    pub(super) fn words_from(&self, place: usize) -> impl Iterator<Item = &'t str> {
        self.tokens.list[place..self.at].iter().map(|token| token.text(self.tokens.tag))
    }

    fn token(&self) -> Option<Token> {
        self.tokens.list.get(self.at).copied()
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        self.token().map(|token| token.kind)
    }

    /// The word that is next, nothing at the end.
    pub(super) fn text(&self) -> &'t str {
        self.token().map_or("", |token| token.text(self.tokens.tag))
    }

    pub(super) fn next_text(&mut self) -> &'t str {
        let text = self.text();
        self.at += 1;
        text
    }

    /// Whether `word` is next, as a name or sign.
    pub(super) fn is(&self, word: &str) -> bool {
        self.text() == word && self.kind() != Some(Kind::Text)
    }

    pub(super) fn skip(&mut self, word: &str) -> bool {
        let is = self.is(word);
        self.at += usize::from(is);
        is
    }

    pub(super) fn expect(&mut self, word: &str) -> Result<(), String> {
        if self.skip(word) { Ok(()) } else { Err(format!("expected {word}, found {:?}", self.text())) }
    }

    pub(super) fn name(&mut self) -> Result<&'t str, String> {
        match self.kind() {
            Some(Kind::Name) => Ok(self.next_text()),
            _ => Err(format!("expected a name, found {:?}", self.text())),
        }
    }

    /// An expression, or several with commas between them.
    pub(super) fn tuple(&mut self) -> Written {
        self.tuple_of(Self::expression)
    }

    pub(super) fn tuple_of(&mut self, one: fn(&mut Self) -> Written) -> Written {
        let first = one(self)?;
        if !self.is(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip(",") {
            if self.at_end() || [")", "if", "recursive"].iter().any(|end| self.is(end)) {
                break;
            }
            items.push(one(self)?);
        }
        Ok(match items.as_slice() {
            [one] => format!("({one},)"),
            items => format!("({})", items.join(", ")),
        })
    }

    /// What may be followed by a filter, of any expression.
    pub(super) fn filterable(&self, written: String) -> String {
        let is_plain =
            |char: char| char.is_alphanumeric() || matches!(char, '_' | '.' | '|' | '(' | ')' | '"');
        if written.chars().all(is_plain) { written } else { format!("({written})") }
    }

    pub(super) fn expression(&mut self) -> Written {
        self.depth += 1;
        if DEEPEST < self.depth {
            return Err("expressions are too deep in one another".into());
        }
        let mut out = self.or()?;
        while self.skip("if") {
            self.link()?;
            out = format!("{out} if {}", self.or()?);
            if self.skip("else") {
                out = format!("{out} else {}", self.expression()?);
            } else if self.is("if") {
                out = format!("({out})");
            }
        }
        self.depth -= 1;
        Ok(out)
    }

    pub(super) fn or(&mut self) -> Written {
        let mut out = self.and()?;
        while self.skip("or") {
            self.link()?;
            out = format!("{out} or {}", self.and()?);
        }
        Ok(out)
    }

    fn and(&mut self) -> Written {
        let mut out = self.not()?;
        while self.skip("and") {
            self.link()?;
            out = format!("{out} and {}", self.not()?);
        }
        Ok(out)
    }

    fn not(&mut self) -> Written {
        if self.is("not") && !self.follows("in") {
            self.link()?;
            self.at += 1;
            return Ok(format!("not {}", self.not()?));
        }
        self.comparison()
    }

    /// Counts what makes an expression deeper.
    pub(super) fn link(&mut self) -> Result<(), String> {
        self.links += 1;
        if MOST_LINKS < self.links { Err("too many operators in a tag".into()) } else { Ok(()) }
    }

    /// Whether `word` comes after the next one.
    pub(super) fn follows(&self, word: &str) -> bool {
        self.tokens.list.get(self.at + 1).is_some_and(|token| token.text(self.tokens.tag) == word)
    }

    fn comparison(&mut self) -> Written {
        let mut left = self.sum()?;
        let mut all = Vec::new();
        loop {
            let filter = match self.text() {
                _ if self.kind() == Some(Kind::Text) => break,
                "==" | "!=" => names::EQ,
                "<" => names::LT,
                "<=" => names::LE,
                ">" => names::GT,
                ">=" => names::GE,
                "in" => names::IN,
                "not" if self.follows("in") => names::IN,
                _ => break,
            };
            self.link()?;
            let sign = self.next_text();
            self.at += usize::from(sign == "not");
            let right = self.sum()?;
            all.push(match sign {
                "!=" | "not" => format!("not {left}|{filter}({right})"),
                _ => format!("{left}|{filter}({right})"),
            });
            left = right;
        }
        Ok(match all.as_slice() {
            [] => left,
            [one] => one.clone(),
            all => format!("({})", all.join(" and ")),
        })
    }

    fn sum(&mut self) -> Written {
        self.operators(&[("+", names::ADD), ("-", names::SUB)], Self::concatenation)
    }

    fn concatenation(&mut self) -> Written {
        let first = self.product()?;
        let mut others = Vec::new();
        while self.skip("~") {
            others.push(self.product()?);
        }
        Ok(if others.is_empty() {
            first
        } else {
            format!("{first}|{}({})", names::CONCAT, others.join(", "))
        })
    }

    fn product(&mut self) -> Written {
        let signs = [("*", names::MUL), ("/", names::DIV), ("//", names::FLOOR_DIV), ("%", names::MOD)];
        self.operators(&signs, Self::power)
    }

    fn power(&mut self) -> Written {
        let mut out = self.unary(true)?;
        while self.skip("**") {
            self.link()?;
            let right = self.unary(true)?;
            let is_constant = |text: &str| text.chars().all(|char| char.is_ascii_digit() || char == '.');
            let negative = out.strip_prefix('(').and_then(|out| out.strip_suffix("|_neg)")).unwrap_or(&out);
            let is_plain = out.starts_with(|char: char| char.is_alphabetic() || char == '_')
                && !out.contains("_neg")
                || is_constant(negative) && is_constant(&right);
            out = format!("{out}|{}({right}, {is_plain})", names::POW);
        }
        Ok(out)
    }

    fn operators(&mut self, signs: &[(&str, &str)], operand: fn(&mut Self) -> Written) -> Written {
        let mut out = operand(self)?;
        while let Some((_, filter)) = signs.iter().find(|(sign, _)| self.is(sign)) {
            self.link()?;
            self.at += 1;
            out = format!("{out}|{filter}({})", operand(self)?);
        }
        Ok(out)
    }

    fn unary(&mut self, with_filters: bool) -> Written {
        self.depth += 1;
        if DEEPEST < self.depth {
            return Err("expressions are too deep in one another".into());
        }
        let sign = [("-", names::NEG), ("+", names::POS)].into_iter().find(|(sign, _)| self.is(sign));
        let mut out = match sign {
            Some((_, filter)) => {
                self.at += 1;
                let operand = self.unary(false)?;
                format!("({operand}|{filter})")
            }
            None => self.primary()?,
        };
        out = self.postfix(out)?;
        self.depth -= 1;
        if with_filters { self.filters(out) } else { Ok(out) }
    }

    pub(super) fn primary(&mut self) -> Written {
        match self.kind() {
            Some(Kind::Name) => Ok(match self.next_text() {
                "true" | "True" => "true".into(),
                "false" | "False" => "false".into(),
                "none" | "None" => "none".into(),
                name @ ("self" | "super") => return Err(format!("{name} is not supported")),
                name @ ("and" | "or" | "not" | "in" | "is" | "if" | "else") => {
                    return Err(format!("unexpected {name}"));
                }
                name => {
                    let catches = self.outline.macros.get(name).is_some_and(Macro::catches);
                    if catches && !self.is("(") && !self.is(".") {
                        return Err(format!("{name}, which reads varargs or kwargs, is used as a value"));
                    }
                    name.into()
                }
            }),
            Some(Kind::Text) => self.string(),
            Some(Kind::Number) => literal::number(self.next_text()),
            Some(Kind::Sign) => match self.next_text() {
                "(" if self.skip(")") => Ok("()".into()),
                "(" => {
                    let inside = self.tuple()?;
                    self.expect(")")?;
                    Ok(format!("({inside})"))
                }
                "[" => Ok(format!("[{}]", self.items("]", Self::expression)?)),
                "{" => {
                    let entry = |parser: &mut Self| {
                        let is_text = parser.kind() == Some(Kind::Text);
                        let mut key = parser.expression()?;
                        parser.expect(":")?;
                        if !is_text {
                            key = format!("({key})|{}", names::KEY);
                        }
                        Ok(format!("{key}: {}", parser.expression()?))
                    };
                    Ok(format!("{{{}}}", self.items("}", entry)?))
                }
                sign => Err(format!("unexpected {sign}")),
            },
            None => Err("a tag ends too early".into()),
        }
    }

    /// Literals that stand beside one another are one.
    fn string(&mut self) -> Written {
        let mut text = String::new();
        while self.kind() == Some(Kind::Text) {
            let literal = self.next_text();
            text.push_str(&literal::unescaped(&literal[1..literal.len() - 1])?);
        }
        Ok(literal::quoted(&text))
    }

    /// What stands between brackets, the second one included.
    pub(super) fn items(&mut self, close: &str, one: impl Fn(&mut Self) -> Written) -> Written {
        let mut items = Vec::new();
        while !self.skip(close) {
            if !items.is_empty() {
                self.expect(",")?;
                if self.skip(close) {
                    break;
                }
            }
            items.push(one(self)?);
        }
        Ok(items.join(", "))
    }
}
