//! The intermediate form: tensors, index variables, expressions.

use std::collections::BTreeSet;

use crate::diagnostics::Loc;
use crate::spec::equation::When;

/// Index of a tensor in its program.
pub type TensorId = usize;
/// Index of an index variable in its program.
pub type VarId = usize;

/// Equations of a block, an update or a smoothing, with all names resolved.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Index variables.
    pub vars: Vec<Var>,
    /// Tensors.
    pub tensors: Vec<Tensor>,
    /// Slots and scalar states that are read.
    pub scalars: Vec<ScalarRead>,
    /// Statistics over whole buffers, which the body then reads as numbers.
    pub statistics: Vec<Statistic>,
    /// Assignments in order, perhaps around one scan.
    pub body: Vec<Node>,
}

/// A statistic over the elements of buffers.
#[derive(Clone, Debug)]
pub struct Statistic {
    /// What is measured.
    pub kind: StatisticKind,
    /// The number measured of each element, over [`Statistic::element`].
    pub value: Expr,
    /// The variable that runs over the elements.
    pub element: VarId,
    /// Tensor of rank 0 that holds the result.
    pub tensor: TensorId,
}

/// Statistics over all elements of a buffer or of a union of buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StatisticKind {
    /// The value below which this share of the elements lies; of numbers that are not negative.
    Quantile(f64),
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Root of the mean of their squares.
    Rms,
    /// Root of the sum of their squares.
    Norm,
    /// The largest.
    Max,
}

/// An index variable: 0 up to its extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Var {
    /// Name as written.
    pub name: String,
    /// Number of values.
    pub extent: usize,
}

/// A tensor of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Name as written, or derived from it.
    pub name: String,
    /// What it is to the program.
    pub role: Role,
    /// Element type.
    pub elem: Elem,
    /// Extents; an extent 0 in front stands for any length.
    pub shape: Vec<usize>,
    /// Place of its declaration or first assignment.
    pub loc: Loc,
}

/// What a tensor is to its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read, one a sample.
    Input,
    /// Read, shared by all samples, no gradient.
    Table,
    /// Read, shared by all samples, trainable.
    Param,
    /// Written, one a sample.
    Output,
    /// Made and used inside.
    Local,
    /// The value of `from` at the iteration before; 0 at the first.
    Carry {
        /// Whose value.
        from: TensorId,
    },
    /// Old value of an update's state.
    State,
    /// New value of an update's state.
    Next {
        /// The state's old value.
        of: TensorId,
    },
    /// Given to an adjoint: the objective's derivative by an output, as one of its readers wrote it.
    CotangentIn {
        /// The output.
        of: TensorId,
        /// Which reader.
        reader: usize,
    },
    /// Made by an adjoint: the derivative by an input.
    CotangentOut {
        /// The input.
        of: TensorId,
    },
    /// Made by an adjoint: one sample's derivative by a parameter.
    ParamGradient {
        /// The parameter.
        of: TensorId,
    },
    /// Made by the forward program, kept for the adjoint.
    Saved,
    /// Result of a statistic.
    Statistic,
    /// A condition whose elements a launch counts, block by block.
    BlockCount,
}

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Elem {
    /// The real type of the lowering.
    Real,
    /// 32-bit integer.
    Int,
    /// Truth value.
    Bool,
}

/// A read of a slot or a scalar state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScalarRead {
    /// Which of its values.
    pub when: When,
    /// Slot or state.
    pub name: String,
    /// Member of a family; `None` where it has one, or where the entry's own group is meant.
    pub member: Option<String>,
    /// Whether the value is an integer.
    pub int: bool,
}

/// A step of a program.
#[derive(Clone, Debug)]
pub enum Node {
    /// One assignment.
    Assign(Assign),
    /// A recurrence.
    Scan(Scan),
}

/// A recurrence: its body runs once for every value of `var`.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The step.
    pub var: VarId,
    /// From the last step to the first.
    pub reversed: bool,
    /// What a step does.
    pub body: Vec<Assign>,
}

/// `tensor[index] = value` for all values of the index.
#[derive(Clone, Debug)]
pub struct Assign {
    /// The tensor assigned.
    pub tensor: TensorId,
    /// One variable a dimension.
    pub index: Vec<VarId>,
    /// The value.
    pub value: Expr,
    /// The equation it comes from.
    pub loc: Loc,
}

/// Expressions.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A real number.
    Real(f64),
    /// An integer.
    Int(i64),
    /// The value of an index variable.
    Var(VarId),
    /// An element.
    Load(TensorId, Vec<Expr>),
    /// A slot or a scalar state: index in [`Program::scalars`].
    Scalar(usize),
    /// An integer as a real number.
    ToReal(Box<Expr>),
    /// A function of one value.
    Unary(UnaryFn, Box<Expr>),
    /// A function of two values.
    Binary(BinaryFn, Box<Expr>, Box<Expr>),
    /// `condition ? a : b`
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
    /// A fixed-order reduction over variables.
    Reduce(Reduction, Vec<VarId>, Box<Expr>),
}

/// Functions of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum UnaryFn {
    Neg,
    Not,
    Abs,
    Exp,
    Log,
    Log1p,
    Tanh,
    Sigmoid,
    Softplus,
    Sqrt,
    Sin,
    Cos,
    Floor,
    IsFinite,
    /// The value; its derivative is zero.
    Stop,
}

/// Functions of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum BinaryFn {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    And,
    Or,
}

/// Reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Reduction {
    Sum,
    Max,
    Min,
}

impl Program {
    /// All assignments, with whether each stands inside the scan.
    pub fn assigns(&self) -> impl Iterator<Item = (&Assign, bool)> {
        self.body.iter().flat_map(|node| match node {
            Node::Assign(a) => vec![(a, false)],
            Node::Scan(s) => s.body.iter().map(|a| (a, true)).collect(),
        })
    }

    /// The same program with each assignment as `f` gives it back, or without it.
    pub fn map_assigns(&self, mut f: impl FnMut(&Assign) -> Option<Assign>) -> Program {
        let mut body = Vec::new();
        for node in &self.body {
            match node {
                Node::Assign(assign) => body.extend(f(assign).map(Node::Assign)),
                Node::Scan(scan) => {
                    let inside = scan.body.iter().filter_map(&mut f).collect();
                    body.push(Node::Scan(Scan { body: inside, ..scan.clone() }));
                }
            }
        }
        Program { body, ..self.clone() }
    }

    /// The scan, if there is one.
    pub fn scan(&self) -> Option<&Scan> {
        self.body.iter().find_map(|n| if let Node::Scan(s) = n { Some(s) } else { None })
    }

    /// A new variable.
    pub fn add_var(&mut self, name: &str, extent: usize) -> VarId {
        self.vars.push(Var { name: name.to_owned(), extent });
        self.vars.len() - 1
    }

    /// A new tensor.
    pub fn add_tensor(&mut self, tensor: Tensor) -> TensorId {
        self.tensors.push(tensor);
        self.tensors.len() - 1
    }

    /// Element type of an expression.
    pub fn elem(&self, expr: &Expr) -> Elem {
        match expr {
            Expr::Real(_) | Expr::ToReal(_) => Elem::Real,
            Expr::Int(_) | Expr::Var(_) => Elem::Int,
            Expr::Load(t, _) => self.tensors[*t].elem,
            Expr::Scalar(s) => {
                if self.scalars[*s].int {
                    Elem::Int
                } else {
                    Elem::Real
                }
            }
            Expr::Unary(UnaryFn::Not | UnaryFn::IsFinite, _) => Elem::Bool,
            Expr::Unary(_, a) | Expr::Reduce(_, _, a) => self.elem(a),
            Expr::Binary(op, a, _) => {
                if op.gives_bool() {
                    Elem::Bool
                } else {
                    self.elem(a)
                }
            }
            Expr::Select(_, a, _) => self.elem(a),
        }
    }
}

impl BinaryFn {
    /// Whether the result is a truth value.
    pub fn gives_bool(self) -> bool {
        use BinaryFn::*;
        matches!(self, Lt | Le | Gt | Ge | Eq | Ne | And | Or)
    }
}

impl UnaryFn {
    /// Whether computing it anew costs more than keeping it.
    pub fn is_costly(self) -> bool {
        use UnaryFn::*;
        matches!(self, Exp | Log | Log1p | Tanh | Sigmoid | Softplus | Sqrt | Sin | Cos)
    }
}

impl Expr {
    /// Calls `f` on this expression and on every part of it, outside first.
    pub fn visit(&self, f: &mut impl FnMut(&Expr)) {
        f(self);
        match self {
            Expr::Real(_) | Expr::Int(_) | Expr::Var(_) | Expr::Scalar(_) => {}
            Expr::Load(_, parts) => parts.iter().for_each(|e| e.visit(f)),
            Expr::ToReal(a) | Expr::Unary(_, a) | Expr::Reduce(_, _, a) => a.visit(f),
            Expr::Binary(_, a, b) => {
                a.visit(f);
                b.visit(f);
            }
            Expr::Select(c, a, b) => {
                c.visit(f);
                a.visit(f);
                b.visit(f);
            }
        }
    }

    /// The same expression with `f` applied to its direct parts.
    pub fn map(&self, mut f: impl FnMut(&Expr) -> Expr) -> Expr {
        match self {
            Expr::Real(_) | Expr::Int(_) | Expr::Var(_) | Expr::Scalar(_) => self.clone(),
            Expr::Load(t, parts) => Expr::Load(*t, parts.iter().map(f).collect()),
            Expr::ToReal(a) => Expr::ToReal(Box::new(f(a))),
            Expr::Unary(op, a) => Expr::Unary(*op, Box::new(f(a))),
            Expr::Reduce(op, vars, a) => Expr::Reduce(*op, vars.clone(), Box::new(f(a))),
            Expr::Binary(op, a, b) => Expr::Binary(*op, Box::new(f(a)), Box::new(f(b))),
            Expr::Select(c, a, b) => Expr::Select(Box::new(f(c)), Box::new(f(a)), Box::new(f(b))),
        }
    }

    /// The same expression with variables replaced.
    pub fn substitute(&self, from: &[VarId], to: &[VarId]) -> Expr {
        let to: Vec<Expr> = to.iter().copied().map(Expr::Var).collect();
        self.replace_vars(from, &to)
    }

    /// The same expression with each variable replaced by the expression that stands for it.
    pub fn replace_vars(&self, from: &[VarId], to: &[Expr]) -> Expr {
        match self {
            Expr::Var(v) => from.iter().position(|f| f == v).map_or_else(|| self.clone(), |n| to[n].clone()),
            _ => self.map(|e| e.replace_vars(from, to)),
        }
    }

    /// Variables that are used and not bound by a reduction inside.
    pub fn free_vars(&self) -> BTreeSet<VarId> {
        match self {
            Expr::Var(v) => BTreeSet::from([*v]),
            Expr::Reduce(_, vars, body) => &body.free_vars() - &vars.iter().copied().collect(),
            _ => {
                let mut free = BTreeSet::new();
                self.map(|e| {
                    free.extend(e.free_vars());
                    e.clone()
                });
                free
            }
        }
    }

    /// Tensors that are read.
    pub fn loads(&self) -> BTreeSet<TensorId> {
        let mut loads = BTreeSet::new();
        self.visit(&mut |e| {
            if let Expr::Load(t, _) = e {
                loads.insert(*t);
            }
        });
        loads
    }

    /// Whether it holds a reduction, a transcendental function or a division.
    pub fn is_costly(&self) -> bool {
        let mut costly = false;
        self.visit(&mut |e| {
            costly |= match e {
                Expr::Reduce(..) | Expr::Binary(BinaryFn::Div, ..) => true,
                Expr::Unary(op, _) => op.is_costly(),
                _ => false,
            }
        });
        costly
    }

    /// Whether it selects anywhere.
    pub fn has_select(&self) -> bool {
        let mut found = false;
        self.visit(&mut |e| found |= matches!(e, Expr::Select(..)));
        found
    }

    /// `a + b`, without zeros.
    #[allow(clippy::should_implement_trait)]
    pub fn add(a: Expr, b: Expr) -> Expr {
        match (&a, &b) {
            (Expr::Real(0.0), _) => b,
            (_, Expr::Real(0.0)) => a,
            _ => Expr::Binary(BinaryFn::Add, Box::new(a), Box::new(b)),
        }
    }

    /// `a * b`, without ones and zeros.
    #[allow(clippy::should_implement_trait)]
    pub fn mul(a: Expr, b: Expr) -> Expr {
        match (&a, &b) {
            (Expr::Real(0.0), _) | (_, Expr::Real(0.0)) => Expr::Real(0.0),
            (_, Expr::Real(1.0)) => a,
            (Expr::Real(1.0), _) => b,
            _ => Expr::Binary(BinaryFn::Mul, Box::new(a), Box::new(b)),
        }
    }

    /// `a / b`
    #[allow(clippy::should_implement_trait)]
    pub fn div(a: Expr, b: Expr) -> Expr {
        Expr::Binary(BinaryFn::Div, Box::new(a), Box::new(b))
    }

    /// `-a`
    #[allow(clippy::should_implement_trait)]
    pub fn neg(a: Expr) -> Expr {
        match a {
            Expr::Real(x) => Expr::Real(-x),
            a => Expr::Unary(UnaryFn::Neg, Box::new(a)),
        }
    }

    /// `a - b`
    #[allow(clippy::should_implement_trait)]
    pub fn sub(a: Expr, b: Expr) -> Expr {
        match b {
            Expr::Real(0.0) => a,
            b => Expr::Binary(BinaryFn::Sub, Box::new(a), Box::new(b)),
        }
    }

    /// `condition ? a : b`
    pub fn select(condition: Expr, a: Expr, b: Expr) -> Expr {
        Expr::Select(Box::new(condition), Box::new(a), Box::new(b))
    }
}
