//! The grammar of equations, over `syn` tokens, so that every error points at its character.
//!
//! ```text
//! statements := { target "=" expr [ "when" expr ] }
//! target     := [ "next" "." ] name [ "[" name { "," name } "]" ]
//! expr       := or;  or := and { "||" and };  and := cmp { "&&" cmp };  cmp := sum [ ("<"|"<="|">"|">="|"=="|"!=") sum ]
//! sum        := term { ("+"|"-") term };  term := unary { ("*"|"/") unary };  unary := ("-"|"!") unary | atom
//! atom       := number | name | name "[" expr,* "]" | name "(" expr,* ")" | ("prev"|"now"|"observed") "." name [ "[" name "]" ] | "(" expr ")"
//! ```

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Ident, LitFloat, LitInt, Token, bracketed, parenthesized};

use crate::diagnostics::{Code, Loc, Report};

/// A text inside a spec file: its characters, and where each of them stands in the file.
#[derive(Clone, Debug)]
pub struct Text {
    /// The text as TOML gives it.
    pub value: String,
    /// The whole value, quotes included.
    pub loc: Loc,
    /// Byte of the file at which the text starts, if it stands there letter by letter.
    pub origin: Option<usize>,
}

impl Text {
    /// The place of a byte range of the text.
    pub fn at(&self, range: std::ops::Range<usize>) -> Loc {
        match self.origin {
            Some(origin) => Loc {
                file: self.loc.file,
                range: origin + range.start..origin + range.end,
            },
            None => self.loc.clone(),
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
    /// The name assigned.
    pub name: Name,
    /// Index names.
    pub indices: Vec<Name>,
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
    parse_with(text, report, |input| Reader { text }.statements(input)).unwrap_or_default()
}

/// Reads one expression.
pub fn parse_expr(text: &Text, report: &mut Report) -> Option<Expr> {
    parse_with(text, report, |input| {
        let expr = Reader { text }.or(input)?;
        if input.is_empty() {
            Ok(expr)
        } else {
            Err(input.error("expected an operator or the end"))
        }
    })
}

/// Reads a shape such as `[H, I]`: names or integers.
pub fn parse_shape(text: &Text, report: &mut Report) -> Vec<String> {
    let parts = parse_with(text, report, |input| {
        let inner;
        bracketed!(inner in input);
        let dims = Punctuated::<Dim, Token![,]>::parse_terminated_with(&inner, |input| {
            if input.peek(LitInt) {
                return Ok(Dim(input.parse::<LitInt>()?.base10_parse::<u32>()?.to_string()));
            }
            if input.parse::<Option<Token![*]>>()?.is_some() {
                return Ok(Dim("*".into()));
            }
            Ok(Dim(input.call(Ident::parse_any)?.to_string()))
        })?;
        Ok(dims.into_iter().map(|d| d.0).collect())
    });
    parts.unwrap_or_default()
}

struct Dim(String);

fn parse_with<T>(
    text: &Text,
    report: &mut Report,
    parser: impl FnOnce(ParseStream<'_>) -> syn::Result<T>,
) -> Option<T> {
    let tokens: TokenStream = match text.value.parse() {
        Ok(tokens) => tokens,
        Err(error) => {
            let error: proc_macro2::LexError = error;
            report.push(
                Code::EquationLex,
                &text.at(error.span().byte_range()),
                "not part of the equation language",
            );
            return None;
        }
    };
    match parser.parse2(tokens) {
        Ok(value) => Some(value),
        Err(error) => {
            let range = error.span().byte_range();
            let end = text.value.trim_end().len();
            let range = if range.is_empty() {
                end.saturating_sub(1)..end
            } else {
                range
            };
            report.push(
                Code::EquationSyntax,
                &text.at(range),
                error.to_string().trim_end_matches(", ").to_owned(),
            );
            None
        }
    }
}

struct Reader<'a> {
    text: &'a Text,
}

impl Reader<'_> {
    fn loc(&self, span: Span) -> Loc {
        self.text.at(span.byte_range())
    }

    fn name(&self, ident: &Ident) -> Name {
        Name {
            text: ident.unraw().to_string(),
            loc: self.loc(ident.span()),
        }
    }

    fn statements(&self, input: ParseStream<'_>) -> syn::Result<Vec<Statement>> {
        let mut statements = Vec::new();
        while !input.is_empty() {
            statements.push(self.statement(input)?);
            while input.parse::<Option<Token![;]>>()?.is_some() {}
        }
        Ok(statements)
    }

    fn statement(&self, input: ParseStream<'_>) -> syn::Result<Statement> {
        let target = self.target(input)?;
        input.parse::<Token![=]>().map_err(|e| {
            syn::Error::new(
                e.span(),
                "expected `=` after the name, as in `name[index] = expression`",
            )
        })?;
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
        if next {
            input.parse::<Token![.]>()?;
            ident = input.call(Ident::parse_any)?;
        }
        let mut indices = Vec::new();
        if input.peek(syn::token::Bracket) {
            let inner;
            bracketed!(inner in input);
            let idents = Punctuated::<Ident, Token![,]>::parse_terminated_with(&inner, |i| i.call(Ident::parse_any))?;
            indices = idents.iter().map(|i| self.name(i)).collect();
        }
        Ok(Target {
            next,
            name: self.name(&ident),
            indices,
        })
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
        Ok(binary(op, left, self.sum(input)?))
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
        let inner = self.unary(input)?;
        let loc = join(&self.loc(span), &inner.loc);
        Ok(Expr {
            kind: ExprKind::Unary(op, Box::new(inner)),
            loc,
        })
    }

    fn atom(&self, input: ParseStream<'_>) -> syn::Result<Expr> {
        let loc = self.loc(input.span());
        if input.peek(LitFloat) {
            let value = input.parse::<LitFloat>()?.base10_parse()?;
            return Ok(Expr {
                kind: ExprKind::Float(value),
                loc,
            });
        }
        if input.peek(LitInt) {
            let value = input.parse::<LitInt>()?.base10_parse()?;
            return Ok(Expr {
                kind: ExprKind::Int(value),
                loc,
            });
        }
        if input.peek(syn::token::Paren) {
            let inner;
            parenthesized!(inner in input);
            let expr = self.or(&inner)?;
            return if inner.is_empty() {
                Ok(expr)
            } else {
                Err(inner.error("expected an operator or `)`"))
            };
        }
        let ident = input
            .call(Ident::parse_any)
            .map_err(|e| syn::Error::new(e.span(), "expected a number, a name or `(`"))?;
        self.named(self.name(&ident), input)
    }

    fn named(&self, name: Name, input: ParseStream<'_>) -> syn::Result<Expr> {
        let loc = name.loc.clone();
        if input.peek(syn::token::Bracket) {
            let inner;
            let end = bracketed!(inner in input).span.close();
            let args = self.list(&inner)?;
            return Ok(Expr {
                kind: ExprKind::Index(name, args),
                loc: join(&loc, &self.loc(end)),
            });
        }
        if input.peek(syn::token::Paren) {
            let inner;
            let end = parenthesized!(inner in input).span.close();
            let args = self.list(&inner)?;
            return Ok(Expr {
                kind: ExprKind::Call(name, args),
                loc: join(&loc, &self.loc(end)),
            });
        }
        if input.peek(Token![.]) {
            return self.read(&name, input);
        }
        Ok(Expr {
            kind: ExprKind::Name(name.text),
            loc,
        })
    }

    fn read(&self, scope: &Name, input: ParseStream<'_>) -> syn::Result<Expr> {
        let dot = input.parse::<Token![.]>()?;
        let when = match scope.text.as_str() {
            "prev" => When::Prev,
            "now" => When::Now,
            "observed" => When::Observed,
            _ => return Err(syn::Error::new(dot.span, "only prev, now and observed have members")),
        };
        let ident = input.call(Ident::parse_any)?;
        let name = self.name(&ident);
        let mut loc = join(&scope.loc, &name.loc);
        let mut member = None;
        if input.peek(syn::token::Bracket) {
            let inner;
            let end = bracketed!(inner in input).span.close();
            member = Some(self.name(&inner.call(Ident::parse_any)?));
            loc = join(&loc, &self.loc(end));
        }
        Ok(Expr {
            kind: ExprKind::Read(when, name, member),
            loc,
        })
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
    Expr {
        kind: ExprKind::Binary(op, Box::new(left), Box::new(right)),
        loc,
    }
}

fn join(a: &Loc, b: &Loc) -> Loc {
    Loc {
        file: a.file,
        range: a.range.start.min(b.range.start)..a.range.end.max(b.range.end),
    }
}
