//! Stage *math*: equations as a program over tensors, and its adjoint. Knows no schedule and no device.
//!
//! A program is a straight list of assignments, or such a list around one scan over time. Inside a scan every
//! tensor carries the step as its leading index, so that meaning never depends on how a value is stored.

mod adjoint;
mod copies;
mod elaborate;
mod ir;
mod normal;
mod print;

pub use adjoint::{Adjoint, adjoint};
pub use elaborate::{Declared, Scope, elaborate};
pub use ir::{
    Assign, BinaryFn, Elem, Expr, Node, Program, Reduction, Role, ScalarRead, Scan, Statistic, StatisticKind, Tensor,
    TensorId, UnaryFn, Var, VarId,
};
pub use normal::normalize;
