//! A launcher for each kernel: arguments named and typed from the spec, lengths checked.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use unio_interface::{Access, Arg, Artefacts, Elem, Kernel, KernelParam, Role};

use crate::handles::camel;

/// The module `kernels`.
pub(crate) fn expand(artefacts: &Artefacts) -> TokenStream {
    let launchers = artefacts.kernels.iter().enumerate().map(|(index, kernel)| launcher(artefacts, index, kernel));
    quote! {
        /// Launchers of single kernels, in f32.
        pub mod kernels { #(#launchers)* }
    }
}

fn launcher(artefacts: &Artefacts, index: usize, kernel: &Kernel) -> TokenStream {
    let name = launcher_name(artefacts, kernel);
    let args = format_ident!("{name}Args");
    let (doc, symbol) = (&kernel.doc, &kernel.symbol);
    let args_doc = format!("Arguments of [`{name}`].");
    let own = kernel.params.iter().filter(|p| !matches!(p, KernelParam::Rows { .. }) && !is_gradient(p));
    let gradient = GradientField::of(artefacts, index);
    let whole = gradient.as_ref().map(GradientField::field);
    let fields = own.map(field).chain(whole);
    let whole = gradient.as_ref().map(|g| g.check(symbol, counted(kernel)));
    let checks = kernel.params.iter().filter(|p| !is_gradient(p)).map(|p| check(symbol, p, kernel)).chain(whole);
    let values = kernel.params.iter().enumerate().map(|(n, p)| match &gradient {
        Some(gradient) if is_gradient(p) => gradient.value(n),
        _ => value(symbol, p),
    });
    let n = counted(kernel).map_or(quote!(0), |n| quote!(args.#n));
    let (returns, result) = gradient.as_ref().map_or((quote!(()), quote!(())), GradientField::returned);
    quote! {
        #[doc = #doc]
        #[derive(Clone, Debug)]
        pub struct #name(::unio::launcher::Launcher);

        #[doc = #args_doc]
        pub struct #args<'a> { #(#fields),* }

        impl #name {
            /// Symbol in the text.
            pub const SYMBOL: &'static str = #symbol;

            /// Loads the kernel; the text is compiled at its first use.
            pub fn load(device: &::unio::device::Device) -> ::std::result::Result<Self, ::unio::device::DeviceError> {
                ::unio::launcher::Launcher::load(device, super::artefacts(), #index).map(Self)
            }

            /// Launches the kernel after all that was launched before.
            pub fn launch(&self, args: #args<'_>) -> ::std::result::Result<#returns, ::unio::launcher::LaunchError> {
                #(#checks)*
                // SAFETY: number and types of the arguments come from the kernel's own parameters; lengths were checked.
                unsafe { self.0.launch(#n, &[#(#values),*])? };
                Ok(#result)
            }
        }
    }
}

/// Whether a kernel writes gradients through this parameter that an optimizer may take.
fn is_gradient(param: &KernelParam) -> bool {
    matches!(
        param,
        KernelParam::Buffer { role: Role::Reduced, access: Access::Out, .. }
            | KernelParam::Buffer { role: Role::GradientOf(_), .. }
    )
}

/// The field for the gradients that a kernel writes. Where several kernels do, each takes what the one before has left, so
/// that the last one's result is complete.
struct GradientField<'a> {
    name: Ident,
    kernel: &'a Kernel,
    /// First element behind each parameter.
    starts: Vec<usize>,
    /// Elements of all gradients, if the model fixes them.
    total: Option<usize>,
    /// Launcher of the kernel before.
    after: Option<Ident>,
    is_last: bool,
}

impl<'a> GradientField<'a> {
    fn of(artefacts: &'a Artefacts, index: usize) -> Option<Self> {
        let writes = |kernel: &Kernel| kernel.params.iter().any(is_gradient);
        let writers: Vec<usize> = (0..artefacts.kernels.len()).filter(|n| writes(&artefacts.kernels[*n])).collect();
        let place = writers.iter().position(|n| *n == index)?;
        let kernel = &artefacts.kernels[index];
        let launch = artefacts.program.iter().flat_map(|p| &p.train).find(|l| l.kernel == index);
        let start = |arg: &Arg| if let Arg::Buffer { start, .. } = arg { *start } else { 0 };
        let params = artefacts.program.iter().flat_map(|p| &p.params);
        Some(Self {
            name: gradient_name(kernel),
            kernel,
            starts: launch.iter().flat_map(|l| &l.args).map(start).collect(),
            total: artefacts.program.as_ref().map(|_| params.map(|p| p.shape.iter().product::<usize>()).sum()),
            after: place.checked_sub(1).map(|before| launcher_name(artefacts, &artefacts.kernels[writers[before]])),
            is_last: place + 1 == writers.len(),
        })
    }

    fn field(&self) -> TokenStream {
        let name = &self.name;
        let ty = match &self.after {
            None => quote!(::unio::launcher::Gradient<f32>),
            Some(before) => quote!(::unio::launcher::After<f32, #before>),
        };
        let doc = "Room for the gradients of all parameters, after the kernels that gave theirs before";
        quote! { #[doc = #doc] pub #name: #ty }
    }

    fn check(&self, symbol: &str, counted: Option<Ident>) -> TokenStream {
        let (name, ident) = (self.name.to_string(), &self.name);
        let needed = match (self.total, counted) {
            (Some(total), _) => quote!(#total),
            (None, Some(n)) => quote!(args.#n),
            (None, None) => return TokenStream::new(),
        };
        quote! { ::unio::launcher::check_len(#symbol, #name, #needed, args.#ident.tensor().len())?; }
    }

    fn value(&self, param: usize) -> TokenStream {
        let (name, start) = (&self.name, self.starts.get(param).copied().unwrap_or(0));
        let len = match &self.kernel.params[param] {
            KernelParam::Buffer { len: Some(len), .. } => *len,
            _ => 0,
        };
        quote!(args.#name.tensor().words(#start, #len).arg())
    }

    fn returned(&self) -> (TokenStream, TokenStream) {
        let name = &self.name;
        match self.is_last {
            true => (quote!(::unio::launcher::Reduced<f32>), quote!(args.#name.reduced())),
            false => (quote!(::unio::launcher::After<f32, Self>), quote!(args.#name.after())),
        }
    }
}

/// The reducer's own name for them; a stage's kernel has one for each parameter, and so needs one for all.
fn gradient_name(kernel: &Kernel) -> Ident {
    let reduced = kernel.params.iter().find_map(|p| match p {
        KernelParam::Buffer { name, role: Role::Reduced, access: Access::Out, .. } => Some(raw(name)),
        _ => None,
    });
    let taken = |p: &KernelParam| matches!(p, KernelParam::Buffer { name, .. } if name == "grads");
    let own = if kernel.params.iter().any(taken) { "grads_" } else { "grads" };
    reduced.unwrap_or_else(|| raw(own))
}

fn launcher_name(artefacts: &Artefacts, kernel: &Kernel) -> Ident {
    let short = kernel.symbol.strip_prefix(&format!("{}_", artefacts.set)).unwrap_or(&kernel.symbol);
    format_ident!("{}", camel(short))
}

fn counted(kernel: &Kernel) -> Option<Ident> {
    kernel.params.iter().find_map(|p| if let KernelParam::Count { name } = p { Some(raw(name)) } else { None })
}

/// The number of a union's parts, of whose tables a kernel reads all.
fn parts(kernel: &Kernel) -> Option<Ident> {
    kernel.params.iter().find_map(|p| if let KernelParam::Number { name } = p { Some(raw(name)) } else { None })
}

/// An identifier for any legal name; words of Rust become raw, and those that cannot be get a `_`.
pub(crate) fn raw(name: &str) -> Ident {
    match name {
        "self" | "super" | "crate" | "Self" | "_" => format_ident!("{name}_"),
        // A word since edition 2024, which syn does not count among them.
        "gen" => Ident::new_raw(name, proc_macro2::Span::call_site()),
        name => syn::parse_str(name).unwrap_or_else(|_| Ident::new_raw(name, proc_macro2::Span::call_site())),
    }
}

fn rust_type(elem: Elem) -> TokenStream {
    match elem {
        Elem::I32 => quote!(i32),
        Elem::F64 => quote!(f64),
        Elem::Real | Elem::F32 => quote!(f32),
    }
}

fn field(param: &KernelParam) -> TokenStream {
    match param {
        KernelParam::Number { name } => {
            let name = raw(name);
            quote! { #[doc = "Parts of the union."] pub #name: usize }
        }
        KernelParam::Count { name } | KernelParam::Rows { name, .. } => {
            let name = raw(name);
            quote! { #[doc = "Number of elements."] pub #name: usize }
        }
        KernelParam::Buffer { name, elem, access, len, role, .. } => {
            let ident = raw(name);
            let doc = format!("{}{}", describe(role), len.map_or(String::new(), |len| format!(", {len} elements")));
            let t = rust_type(*elem);
            let ty = match (role, access) {
                (Role::Reduced, _) => quote!(&'a ::unio::launcher::Reduced<#t>),
                (Role::Scalar, _) => quote!(::unio::launcher::Words<'a, #t>),
                (_, Access::In) => quote!(&'a ::unio::launcher::Tensor<#t>),
                (_, _) => quote!(&'a mut ::unio::launcher::Tensor<#t>),
            };
            quote! { #[doc = #doc] pub #ident: #ty }
        }
    }
}

fn describe(role: &Role) -> String {
    match role {
        Role::Input => "Input".into(),
        Role::Table => "Table shared by all samples".into(),
        Role::Param => "Trainable tensor".into(),
        Role::Output => "Output".into(),
        Role::Saved => "Kept by one kernel of the stage for another".into(),
        Role::CotangentOf(name) => format!("Derivative of the objective by the output `{name}`"),
        Role::CotangentTo(name) => format!("Derivative of the objective by the input `{name}`"),
        Role::ParamGradient(name) => format!("Each sample's derivative by `{name}`, in the gradient scratch"),
        Role::GradientOf(name) => format!("Derivative by `{name}`, summed over the batch"),
        Role::Scalar => "Slot, state or observation".into(),
        Role::State => "State: read and advanced".into(),
        Role::Reduced => "Gradient after the reduction over the batch".into(),
    }
}

fn check(symbol: &str, param: &KernelParam, kernel: &Kernel) -> TokenStream {
    if let KernelParam::Rows { of, row_len, .. } = param {
        let table = raw(of);
        return quote! { ::unio::launcher::check_len(#symbol, #of, #row_len, args.#table.len())?; };
    }
    let KernelParam::Buffer { name, len, row, role, access, .. } = param else {
        return TokenStream::new();
    };
    let ident = raw(name);
    // A table of any length has a parameter of its own that tells its rows.
    let times =
        |n: Option<Ident>| n.map(|n| if *row == 1 { quote!(args.#n) } else { quote!(args.#n.saturating_mul(#row)) });
    let needed = match (len, role) {
        (Some(len), _) => quote!(#len),
        (None, Role::Saved) => times(parts(kernel)).unwrap_or(quote!(#row)),
        (None, _) => match times(counted(kernel)) {
            Some(needed) => needed,
            None => return TokenStream::new(),
        },
    };
    let given = match (role, access) {
        (Role::Reduced, _) => quote!(args.#ident.tensor().len()),
        _ => quote!(args.#ident.len()),
    };
    quote! { ::unio::launcher::check_len(#symbol, #name, #needed, #given)?; }
}

fn value(symbol: &str, param: &KernelParam) -> TokenStream {
    match param {
        KernelParam::Rows { of, row_len, .. } => {
            let table = raw(of);
            quote!(::unio::device::Arg::I32(::unio::launcher::check_count(#symbol, args.#table.len() / #row_len)?))
        }
        KernelParam::Count { name } | KernelParam::Number { name } => {
            let name = raw(name);
            quote!(::unio::device::Arg::I32(::unio::launcher::check_count(#symbol, args.#name)?))
        }
        KernelParam::Buffer { name, role: Role::Reduced, .. } => {
            let name = raw(name);
            quote!(args.#name.tensor().arg())
        }
        KernelParam::Buffer { name, .. } => {
            let name = raw(name);
            quote!(args.#name.arg())
        }
    }
}
