pub mod data;
pub mod device;
pub mod metrics;
