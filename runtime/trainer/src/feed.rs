//! What a fold and its epochs put on the device before they take steps.

use anyhow::Result;
use unio::data::FoldData;
use unio::random::permutation;
use unio::run::Run;
use unio::{Session, When};

use crate::perception::{buffers, states};

/// Puts the fold's data on the device; weights, slots, moments and counters start anew.
pub fn begin(session: &mut Session, run: &Run, data: &FoldData) -> Result<()> {
    session.write(buffers::FEATURE, &data.features)?;
    session.write(buffers::GAP, &data.dt)?;
    session.write(buffers::DIRECTION_LABEL, &data.direction)?;
    session.write(buffers::VOLATILITY_LABEL, &data.volatility)?;
    session.write(buffers::LOG_VOLATILITY, &data.log_volatility)?;
    session.reset(When::Fold)?;
    session.init_params(run.seed + data.fold.number as u64)?;
    Ok(())
}

/// Sets the states that the run gives for an epoch, of which the last value lasts, and makes every training row, in an order
/// of the epoch's own, the rows that the next steps take. Gives their number.
pub fn begin_epoch(session: &mut Session, run: &Run, data: &FoldData, epoch: usize) -> Result<usize> {
    for (name, values) in &run.states {
        if let Some(value) = values.get(epoch - 1).or(values.last()) {
            session.set_state_named(name, *value)?;
        }
    }
    let number = (data.fold.number * 1000 + epoch) as u64;
    start_rows(session, data, &permutation(run.seed, number, &data.train))?;
    Ok(data.train.len())
}

/// Makes these rows the ones that the next steps take. The buffer keeps one length, so that nothing is allocated.
pub fn start_rows(session: &mut Session, data: &FoldData, rows: &[i32]) -> Result<()> {
    let mut order = rows.to_vec();
    order.resize(data.rows(), rows[0]);
    session.write(buffers::ORDER, &order)?;
    session.set_state(states::ROWS, rows.len() as i32)?;
    session.reset(When::Epoch)?;
    Ok(())
}
