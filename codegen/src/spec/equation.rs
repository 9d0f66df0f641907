//! The grammar of equations, over `syn` tokens, so that every error points at its character.
//!
//! ```text
//! statements := { target "=" expr [ "when" expr ] }
//! target     := [ ("next"|"count") "." ] name [ "[" index { "," index } "]" ];  index := name [ ":" name { "*" name } ]
//! expr       := or;  or := and { "||" and };  and := cmp { "&&" cmp };  cmp := sum [ ("<"|"<="|">"|">="|"=="|"!=") sum ]
//! sum        := term { ("+"|"-") term };  term := unary { ("*"|"/") unary };  unary := ("-"|"!") unary | atom
//! atom       := number | value | value "[" expr,* "]" | name "(" expr,* ")" | ("prev"|"now"|"observed") "." name [ "[" name "]" ] | "(" expr ")"
//! value      := name [ "." name ]
//! ```

use std::cell::Cell;

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Ident, LitFloat, LitInt, Token, bracketed, parenthesized};

use crate::diagnostics::{Code, Loc, Report};
use crate::names;

/// A text inside a spec file: its characters, and where each of them stands in the file.
#[derive(Clone, Debug)]
pub struct Text {
    /// The text as TOML gives it.
    pub value: String,
    /// The whole value, quotes included.
    pub loc: Loc,
    /// For each byte of the text, and for its end, the byte of the file where it stands; empty where that is not known.
    pub offsets: Vec<usize>,
}

impl Text {
    /// The place of a byte range of the text.
    pub fn at(&self, range: std::ops::Range<usize>) -> Loc {
        match (self.offsets.get(range.start), self.offsets.get(range.end)) {
            (Some(&start), Some(&end)) if start < end => Loc { file: self.loc.file, range: start..end },
            _ => self.loc.clone(),
        }
    }
}

/// One equation.
#[derive(Clone, Debug)]
pub struct Statement {
    /// Left side.
    pub target: Target,
    /// Right side.
    pub value: Expr,
    /// `when` condition of a `next`.
    pub when: Option<Expr>,
}

/// The left side of an equation.
#[derive(Clone, Debug)]
pub struct Target {
    /// Written as `next.NAME`.
    pub next: bool,
    /// Written as `count.NAME`: how many elements the right side holds for.
    pub count: bool,
    /// The name assigned.
    pub name: Name,
    /// Index names.
    pub indices: Vec<Name>,
    /// For each index how far it runs, where that is written.
    pub extents: Vec<Option<Extent>>,
}

/// How far an index runs.
#[derive(Clone, Debug)]
pub enum Extent {
    /// As far as a size says, or the product of several.
    Sizes(Vec<Name>),
    /// So far.
    Known(usize),
}

/// A name and its place.
#[derive(Clone, Debug)]
pub struct Name {
    /// The name.
    pub text: String,
    /// Its place.
    pub loc: Loc,
}

/// An expression and its place.
#[derive(Clone, Debug)]
pub struct Expr {
    /// What it is.
    pub kind: ExprKind,
    /// Its place.
    pub loc: Loc,
}

impl Expr {
    /// Calls `f` on this expression and on every part of it, outside first.
    pub fn visit(&self, f: &mut impl FnMut(&Expr)) {
        f(self);
        match &self.kind {
            ExprKind::Index(_, args) | ExprKind::Call(_, args) => args.iter().for_each(|a| a.visit(f)),
            ExprKind::Unary(_, a) => a.visit(f),
            ExprKind::Binary(_, a, b) => {
                a.visit(f);
                b.visit(f);
            }
            ExprKind::Float(_) | ExprKind::Int(_) | ExprKind::Name(_) | ExprKind::Read(..) => {}
        }
    }
}

/// Kinds of expression, as written.
#[derive(Clone, Debug)]
pub enum ExprKind {
    /// A literal with a point or an exponent.
    Float(f64),
    /// A literal without.
    Int(i64),
    /// A plain name.
    Name(String),
    /// `name[expr, ...]`
    Index(Name, Vec<Expr>),
    /// `name(expr, ...)`
    Call(Name, Vec<Expr>),
    /// `prev.name`, `now.name`, `observed.name`, perhaps with a member.
    Read(When, Name, Option<Name>),
    /// `-x`, `!x`
    Unary(UnaryOp, Box<Expr>),
    /// `a op b`
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
}

/// Which value of a slot or state a read means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum When {
    /// The last step's.
    Prev,
    /// This step's, so the reader runs after the writer.
    Now,
    /// This step's observation, before smoothing.
    Observed,
}

/// Prefix operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum UnaryOp {
    Neg,
    Not,
}

/// Infix operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    And,
    Or,
}

/// Reads a list of equations; a syntax error ends up in the report and gives an empty list.
pub fn parse_statements(text: &Text, report: &mut Report) -> Vec<Statement> {
    parse_with(text, report, |input| Reader::new(text).statements(input)).unwrap_or_default()
}

/// Reads one expression.
pub fn parse_expr(text: &Text, report: &mut Report) -> Option<Expr> {
    parse_with(text, report, |input| {
        let expr = Reader::new(text).or(input)?;
        if input.is_empty() { Ok(expr) } else { Err(input.error("expected an operator or the end")) }
    })
}

/// Reads a shape such as `[H, I]`: size names, integers and `*`; `None` where it is none, which is then reported.
pub fn parse_shape(text: &Text, report: &mut Report) -> Option<Vec<String>> {
    let value = text.value.as_str();
    let inner = value.trim().strip_prefix('[').and_then(|v| v.strip_suffix(']'));
    let Some(inner) = inner else {
        report.push(Code::ShapeSyntax, &text.loc, "a shape stands between `[` and `]`");
        return None;
    };
    let mut dims = Vec::new();
    let mut at = value.len() - value.trim_start().len() + 1;
    for part in inner.split(',') {
        let dim = part.trim();
        // A comma may stand at the end, and a scalar has no dimension at all.
        if !dim.is_empty() || at + part.len() < value.trim_end().len() - 1 {
            let start = at + part.len() - part.trim_start().len();
            check_dim(dim, &text.at(start..start + dim.len().max(1)), report)?;
            dims.push(dim.to_owned());
        }
        at += part.len() + 1;
    }
    Some(dims)
}

fn check_dim(dim: &str, loc: &Loc, report: &mut Report) -> Option<()> {
    let is_number = dim.starts_with(|c: char| c.is_ascii_digit());
    if dim == "*" || (is_number && dim.parse::<u32>().is_ok()) || names::is_legal(dim) {
        return Some(());
    }
    let label = if dim.is_empty() {
        "a size is missing here".to_owned()
    } else {
        format!("`{dim}` is neither a number nor the name of a size")
    };
    report.push(Code::ShapeSyntax, loc, label);
    None
}

/// Deepest nesting of brackets, and most numbers and names in one equation: recursion must end within any stack.
const DEEPEST: usize = 48;
const MOST_PARTS: usize = 400;
const TOO_LARGE: &str = "more than 400 numbers and names, or signs, in one equation";

fn parse_with<T>(
    text: &Text,
    report: &mut Report,
    parser: impl FnOnce(ParseStream<'_>) -> syn::Result<T>,
) -> Option<T> {
    let plain = without_comments(&text.value);
    if let Some((at, c)) = plain.char_indices().find(|(_, c)| !is_of_equations(*c)) {
        let loc = text.at(at..at + c.len_utf8());
        match c {
            '^' => report.push_note(Code::EquationLex, &loc, "there is no power", "write square(x), or a product"),
            c => report.push(Code::EquationLex, &loc, format!("`{}` belongs to no equation", shown(c))),
        }
        return None;
    }
    if let Err((code, at, label)) = check_brackets(&plain) {
        report.push(code, &text.at(at..at + 1), label);
        return None;
    }
    let tokens: TokenStream = match plain.parse() {
        Ok(tokens) => tokens,
        Err(error) => {
            let error: proc_macro2::LexError = error;
            let range = whole_letters(&text.value, error.span().byte_range());
            report.push(Code::EquationLex, &text.at(range), "not part of the equation language");
            return None;
        }
    };
    parser.parse2(tokens).map_err(|error| report_syntax(text, &error, report)).ok()
}

/// A letter as it is, a control character by its number.
fn shown(c: char) -> String {
    match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    }
}

fn is_of_equations(c: char) -> bool {
    c.is_alphanumeric() || c.is_whitespace() || "_+-*/<>=!&|()[]{}.,;:".contains(c)
}

fn report_syntax(text: &Text, error: &syn::Error, report: &mut Report) {
    let range = error.span().byte_range();
    let message = error.to_string();
    let message = message.trim_start_matches("unexpected end of input, ");
    let code = match message {
        TOO_LARGE => Code::EquationTooLarge,
        _ => Code::EquationSyntax,
    };
    if !range.is_empty() {
        return report.push(code, &text.at(whole_letters(&text.value, range)), message);
    }
    let end = text.value.trim_end().len();
    let last = text.value[..end].char_indices().next_back().map_or(0, |(start, _)| start);
    report.push(code, &text.at(last..end), format!("{message} after this"));
}

/// A range that begins and ends between letters, and is not empty where the text is not.
fn whole_letters(text: &str, range: std::ops::Range<usize>) -> std::ops::Range<usize> {
    let start = text.floor_char_boundary(range.start.min(text.len().saturating_sub(1)));
    start..text.ceil_char_boundary(range.end.max(start + 1).min(text.len()))
}

/// The text with comments as blanks, every other byte in its place.
fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('/') {
        let comment = &rest[start..];
        let len = match comment.as_bytes().get(1) {
            Some(b'/') => comment.find('\n').unwrap_or(comment.len()),
            Some(b'*') => comment.find("*/").map_or(1, |end| end + 2),
            _ => 1,
        };
        plain.push_str(&rest[..start]);
        match len {
            1 => plain.push('/'),
            len => plain.push_str(&" ".repeat(len)),
        }
        rest = &comment[len..];
    }
    plain + rest
}

/// Finds the bracket that has no partner, before the tokens are read: what the lexer says of it helps nobody.
fn check_brackets(text: &str) -> Result<(), (Code, usize, String)> {
    let mut open: Vec<(usize, char)> = Vec::new();
    for (at, c) in text.char_indices() {
        let opening = match c {
            '(' | '[' | '{' => {
                open.push((at, c));
                if open.len() > DEEPEST {
                    let label = format!("brackets nest more than {DEEPEST} deep");
                    return Err((Code::EquationTooLarge, at, label));
                }
                continue;
            }
            ')' => '(',
            ']' => '[',
            '}' => '{',
            _ => continue,
        };
        match open.pop() {
            Some((_, o)) if o == opening => {}
            Some((_, o)) => return Err((Code::EquationSyntax, at, format!("`{c}` cannot close the `{o}` before it"))),
            None => return Err((Code::EquationSyntax, at, format!("nothing is open that `{c}` could close"))),
        }
    }
    match open.pop() {
        Some((at, c)) => Err((Code::EquationSyntax, at, format!("this `{c}` is never closed"))),
        None => Ok(()),
    }
}

struct Reader<'a> {
    text: &'a Text,
    /// Numbers, names and signs of the equation so far.
    parts: Cell<usize>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a Text) -> Self {
        Self { text, parts: Cell::new(0) }
    }

    fn count(&self, span: Span) -> syn::Result<()> {
        self.parts.set(self.parts.get() + 1);
        match self.parts.get() > MOST_PARTS {
            true => Err(syn::Error::new(span, TOO_LARGE)),
            false => Ok(()),
        }
    }

    fn loc(&self, span: Span) -> Loc {
        self.text.at(span.byte_range())
    }

    fn name(&self, ident: &Ident) -> syn::Result<Name> {
        let text = ident.unraw().to_string();
        if !names::is_legal(&text) {
            let label = "a name is made of letters without accents, digits and single `_` between them";
            return Err(syn::Error::new(ident.span(), label));
        }
        let loc = self.loc(ident.span());
        Ok(Name { text, loc })
    }

    fn statements(&self, input: ParseStream<'_>) -> syn::Result<Vec<Statement>> {
        let mut statements = Vec::new();
        while !input.is_empty() {
            self.parts.set(0);
            statements.push(self.statement(input)?);
            while input.parse::<Option<Token![;]>>()?.is_some() {}
        }
        Ok(statements)
    }

    fn statement(&self, input: ParseStream<'_>) -> syn::Result<Statement> {
        let target = self.target(input)?;
        input
            .parse::<Token![=]>()
            .map_err(|e| syn::Error::new(e.span(), "expected `=` after the name, as in `name[index] = expression`"))?;
        let value = self.or(input)?;
        let when = match input.peek(Ident::peek_any) && input.fork().call(Ident::parse_any)? == "when" {
            true => {
                input.call(Ident::parse_any)?;
                Some(self.or(input)?)
            }
            false => None,
        };
        Ok(Statement { target, value, when })
    }

    fn target(&self, input: ParseStream<'_>) -> syn::Result<Target> {
        let mut ident = input
            .call(Ident::parse_any)
            .map_err(|e| syn::Error::new(e.span(), "expected a name at the start of an equation"))?;
        let next = ident == "next" && input.peek(Token![.]);
        let count = ident == "count" && input.peek(Token![.]);
        if next || count {
            input.parse::<Token![.]>()?;
            ident =
                input.call(Ident::parse_any).map_err(|e| syn::Error::new(e.span(), "expected the name of a state"))?;
        }
        let (mut indices, mut extents) = (Vec::new(), Vec::new());
        if input.peek(syn::token::Bracket) {
            let inner;
            bracketed!(inner in input);
            let list = Punctuated::<(Ident, Vec<Ident>), Token![,]>::parse_terminated_with(&inner, index_and_sizes)?;
            for (ident, sizes) in &list {
                let index = self.name(ident)?;
                if indices.iter().any(|i: &Name| i.text == index.text) {
                    return Err(syn::Error::new(ident.span(), "this index stands on the left side twice"));
                }
                indices.push(index);
                let sizes = sizes.iter().map(|size| self.name(size)).collect::<syn::Result<Vec<Name>>>()?;
                extents.push((!sizes.is_empty()).then_some(Extent::Sizes(sizes)));
            }
        }
        Ok(Target { next, count, name: self.name(&ident)?, indices, extents })
    }

    fn or(&self, input: ParseStream<'_>) -> syn::Result<Expr> {
        let mut left = self.and(input)?;
        while input.parse::<Option<Token![||]>>()?.is_some() {
            left = binary(BinaryOp::Or, left, self.and(input)?);
        }
        Ok(left)
    }

    fn and(&self, input: ParseStream<'_>) -> syn::Result<Expr> {
        let mut left = self.comparison(input)?;
        while input.parse::<Option<Token![&&]>>()?.is_some() {
            left = binary(BinaryOp::And, left, self.comparison(input)?);
        }
        Ok(left)
    }

    fn comparison(&self, input: ParseStream<'_>) -> syn::Result<Expr> {
        let left = self.sum(input)?;
        let Some(op) = comparison_op(input)? else {
            return Ok(left);
        };
        let comparison = binary(op, left, self.sum(input)?);
        match comparison_op(&input.fork())? {
            Some(_) => Err(input.error("comparisons do not chain: join two of them with `&&`")),
            None => Ok(comparison),
        }
    }

    fn sum(&self, input: ParseStream<'_>) -> syn::Result<Expr> {
        let mut left = self.term(input)?;
        loop {
            let op = if input.parse::<Option<Token![+]>>()?.is_some() {
                BinaryOp::Add
            } else if input.parse::<Option<Token![-]>>()?.is_some() {
                BinaryOp::Sub
            } else {
                return Ok(left);
            };
            left = binary(op, left, self.term(input)?);
        }
    }

    fn term(&self, input: ParseStream<'_>) -> syn::Result<Expr> {
        let mut left = self.unary(input)?;
        loop {
            let op = if input.parse::<Option<Token![*]>>()?.is_some() {
                BinaryOp::Mul
            } else if input.parse::<Option<Token![/]>>()?.is_some() {
                BinaryOp::Div
            } else {
                return Ok(left);
            };
            left = binary(op, left, self.unary(input)?);
        }
    }

    fn unary(&self, input: ParseStream<'_>) -> syn::Result<Expr> {
        let span = input.span();
        let op = if input.parse::<Option<Token![-]>>()?.is_some() {
            UnaryOp::Neg
        } else if input.parse::<Option<Token![!]>>()?.is_some() {
            UnaryOp::Not
        } else {
            return self.atom(input);
        };
        self.count(span)?;
        let inner = self.unary(input)?;
        let loc = join(&self.loc(span), &inner.loc);
        Ok(Expr { kind: ExprKind::Unary(op, Box::new(inner)), loc })
    }

    fn atom(&self, input: ParseStream<'_>) -> syn::Result<Expr> {
        let loc = self.loc(input.span());
        self.count(input.span())?;
        if input.peek(LitFloat) || input.peek(LitInt) {
            let kind = number(input)?;
            return Ok(Expr { kind, loc });
        }
        if input.peek(syn::token::Paren) {
            let inner;
            let end = parenthesized!(inner in input).span.close();
            let expr = self.or(&inner)?;
            return if inner.is_empty() {
                Ok(Expr { loc: join(&loc, &self.loc(end)), ..expr })
            } else {
                Err(inner.error("expected an operator or `)`"))
            };
        }
        let ident =
            input.call(Ident::parse_any).map_err(|e| syn::Error::new(e.span(), "expected a number, a name or `(`"))?;
        self.named(self.name(&ident)?, input)
    }

    fn named(&self, name: Name, input: ParseStream<'_>) -> syn::Result<Expr> {
        if input.peek(Token![.]) {
            return match name.text.as_str() {
                "prev" => self.read(When::Prev, &name, input),
                "now" => self.read(When::Now, &name, input),
                "observed" => self.read(When::Observed, &name, input),
                _ => {
                    let name = self.output(name, input)?;
                    self.value(name, input)
                }
            };
        }
        self.value(name, input)
    }

    /// `use.output`: what a block that is used here gives.
    fn output(&self, owner: Name, input: ParseStream<'_>) -> syn::Result<Name> {
        input.parse::<Token![.]>()?;
        let ident = input.call(Ident::parse_any).map_err(|e| {
            let label = format!("expected the name of an output of `{}`, as in `{0}.y`", owner.text);
            syn::Error::new(e.span(), label)
        })?;
        let output = self.name(&ident)?;
        Ok(Name { text: names::stage_value(&owner.text, &output.text), loc: join(&owner.loc, &output.loc) })
    }

    fn value(&self, name: Name, input: ParseStream<'_>) -> syn::Result<Expr> {
        let loc = name.loc.clone();
        if input.peek(syn::token::Bracket) {
            let inner;
            let end = bracketed!(inner in input).span.close();
            let args = self.list(&inner)?;
            return Ok(Expr { kind: ExprKind::Index(name, args), loc: join(&loc, &self.loc(end)) });
        }
        if input.peek(syn::token::Paren) {
            let inner;
            let end = parenthesized!(inner in input).span.close();
            let args = self.list(&inner)?;
            return Ok(Expr { kind: ExprKind::Call(name, args), loc: join(&loc, &self.loc(end)) });
        }
        Ok(Expr { kind: ExprKind::Name(name.text), loc })
    }

    fn read(&self, when: When, scope: &Name, input: ParseStream<'_>) -> syn::Result<Expr> {
        input.parse::<Token![.]>()?;
        let ident = input
            .call(Ident::parse_any)
            .map_err(|e| syn::Error::new(e.span(), "expected the name of a slot or a state"))?;
        let name = self.name(&ident)?;
        let mut loc = join(&scope.loc, &name.loc);
        let mut member = None;
        if input.peek(syn::token::Bracket) {
            let inner;
            let end = bracketed!(inner in input).span.close();
            member = Some(self.member(&inner)?);
            if !inner.is_empty() {
                return Err(inner.error("expected `]`: a slot has one member a group"));
            }
            loc = join(&loc, &self.loc(end));
        }
        Ok(Expr { kind: ExprKind::Read(when, name, member), loc })
    }

    /// A member of a family: a name, or the number of one that has none.
    fn member(&self, input: ParseStream<'_>) -> syn::Result<Name> {
        if input.peek(LitInt) {
            let number = input.parse::<LitInt>()?;
            return Ok(Name { text: number.base10_digits().to_owned(), loc: self.loc(number.span()) });
        }
        let ident =
            input.call(Ident::parse_any).map_err(|e| syn::Error::new(e.span(), "expected the name of a member"))?;
        self.name(&ident)
    }

    fn list(&self, input: ParseStream<'_>) -> syn::Result<Vec<Expr>> {
        let mut args = Vec::new();
        while !input.is_empty() {
            args.push(self.or(input)?);
            if input.parse::<Option<Token![,]>>()?.is_none() && !input.is_empty() {
                return Err(input.error("expected `,` or an operator"));
            }
        }
        Ok(args)
    }
}

/// `k`, or `k: K` and `k: M * I` where nothing else tells how far it runs.
fn index_and_sizes(input: ParseStream<'_>) -> syn::Result<(Ident, Vec<Ident>)> {
    let index = input.call(Ident::parse_any)?;
    let mut sizes = Vec::new();
    if input.parse::<Option<Token![:]>>()?.is_some() {
        sizes.push(input.call(Ident::parse_any)?);
        while input.parse::<Option<Token![*]>>()?.is_some() {
            sizes.push(input.call(Ident::parse_any)?);
        }
    }
    Ok((index, sizes))
}

/// A number without a suffix: `2x` would else be read as 2.
fn number(input: ParseStream<'_>) -> syn::Result<ExprKind> {
    let span = input.span();
    let (digits, suffix, is_int) = if input.peek(LitInt) {
        let literal = input.parse::<LitInt>()?;
        (literal.base10_digits().to_owned(), literal.suffix().to_owned(), true)
    } else {
        let literal = input.parse::<LitFloat>()?;
        (literal.base10_digits().to_owned(), literal.suffix().to_owned(), false)
    };
    if !suffix.is_empty() {
        return Err(syn::Error::new(span, format!("expected an operator before `{suffix}`")));
    }
    // What no 32-bit integer holds is a real number.
    if let Some(value) = digits.parse::<i32>().ok().filter(|_| is_int) {
        return Ok(ExprKind::Int(value.into()));
    }
    match digits.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(ExprKind::Float(value)),
        _ => Err(syn::Error::new(span, "a number too large for any type")),
    }
}

fn comparison_op(input: ParseStream<'_>) -> syn::Result<Option<BinaryOp>> {
    Ok(Some(if input.parse::<Option<Token![<=]>>()?.is_some() {
        BinaryOp::Le
    } else if input.parse::<Option<Token![>=]>>()?.is_some() {
        BinaryOp::Ge
    } else if input.parse::<Option<Token![==]>>()?.is_some() {
        BinaryOp::Eq
    } else if input.parse::<Option<Token![!=]>>()?.is_some() {
        BinaryOp::Ne
    } else if input.parse::<Option<Token![<]>>()?.is_some() {
        BinaryOp::Lt
    } else if input.parse::<Option<Token![>]>>()?.is_some() {
        BinaryOp::Gt
    } else {
        return Ok(None);
    }))
}

fn binary(op: BinaryOp, left: Expr, right: Expr) -> Expr {
    let loc = join(&left.loc, &right.loc);
    Expr { kind: ExprKind::Binary(op, Box::new(left), Box::new(right)), loc }
}

fn join(a: &Loc, b: &Loc) -> Loc {
    Loc { file: a.file, range: a.range.start.min(b.range.start)..a.range.end.max(b.range.end) }
}
