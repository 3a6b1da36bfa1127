//! The sending side of the life models.

use super::*;

impl Me<'_> {
    /// As `pairing::switch_slowly`, the sender's half.
    pub(super) fn switch_sending(&self) -> Lived<()> {
        let (w, s) = (self.world, self.world.from);
        if s.phase() != Phase::Paired
            || s.send_mode() != SendMode::Kernel
            || !self.try_pairing(&w.from_pairing)
        {
            return Ok(());
        }
        if s.phase() == Phase::Paired
            && s.send_mode() == SendMode::Kernel
            && handover_state::acknowledged(&w.ring)
            && let Some(mode) = s.send_mode().after(SendEvent::Acknowledged)
        {
            self.step()?;
            s.shift_send_mode(SendMode::Kernel, mode);
        }
        self.step()?;
        lock::release(&w.from_pairing, self.tid, self);
        Ok(())
    }

    pub(super) fn residual_is_due(&self) -> bool {
        !self.world.from.has(flag::RESIDUAL_SENT)
            && handover_state::return_wanted(&self.world.ring).is_some()
    }

    /// As `socket::enter_send`: true when libc is to do the call.
    pub(super) fn enter_send(&self) -> Lived<bool> {
        let s = self.world.from;
        if !s.send_mode().is_kernel() {
            return Ok(false);
        }
        if s.send_mode() == SendMode::Returned && self.residual_is_due() {
            return Ok(false);
        }
        self.switch_sending()?;
        self.step()?;
        s.inside_send.fetch_add(1, SeqCst);
        self.step()?;
        let mode = s.send_mode_fenced();
        // The direction may have been to the device and back since the first look.
        if mode.is_kernel() && !(mode == SendMode::Returned && self.residual_is_due()) {
            return Ok(true);
        }
        s.inside_send.fetch_sub(1, SeqCst);
        Ok(false)
    }

    /// One call of the program's.
    pub fn send(&self, bytes: &[u8]) -> Lived<()> {
        let w = self.world;
        if self.enter_send()? {
            self.step()?;
            self.into_kernel(bytes);
            self.step()?;
            w.from.inside_send.fetch_sub(1, SeqCst);
            return Ok(());
        }
        let mut done = 0;
        while done < bytes.len() {
            done += self.attempt_send(&bytes[done..])?;
            if done < bytes.len() {
                thread::yield_now();
            }
        }
        Ok(())
    }

    /// TCP takes bytes of the program's.
    pub(super) fn into_kernel(&self, bytes: &[u8]) -> usize {
        self.world.accepted(bytes);
        self.world.tcp(|t| {
            t.queue.extend(bytes);
            t.put += bytes.len() as u64;
        });
        bytes.len()
    }

    /// The state, for the thread that holds the world's lock.
    fn sending(&self) -> Held<'static, SendState> {
        // SAFETY: all in a model keep to the world's lock, which our caller holds.
        unsafe { self.world.from.send.alone() }
    }

    /// As `SendGuard::take`.
    pub(super) fn take_send(&self) -> Lived<()> {
        if lock::acquire(&self.world.send_lock, self.tid, self) == Taken::Broken {
            guard::repair_send(self.world.from, &mut self.sending(), &self.world.ring);
        }
        self.step()
    }

    pub(super) fn leave_send(&self) -> Lived<()> {
        self.step()?;
        lock::release(&self.world.send_lock, self.tid, self);
        Ok(())
    }

    /// As `send::attempt`.
    pub(super) fn attempt_send(&self, bytes: &[u8]) -> Lived<usize> {
        self.switch_sending()?;
        self.take_send()?;
        let n = self.attempt_send_locked(bytes)?;
        self.leave_send()?;
        Ok(n)
    }

    pub(super) fn attempt_send_locked(&self, bytes: &[u8]) -> Lived<usize> {
        let s = self.world.from;
        if s.send_mode() == SendMode::Asked {
            self.switch_offset()?;
        }
        match s.send_mode() {
            SendMode::Device if handover_state::return_wanted(&self.world.ring).is_none() => {
                self.into_device(bytes)
            }
            SendMode::Device => {
                self.give_way()?;
                Ok(self.into_kernel(bytes))
            }
            SendMode::Returned => {
                self.send_residual()?;
                Ok(self.into_kernel(bytes))
            }
            SendMode::Kernel | SendMode::Asked => Ok(self.into_kernel(bytes)),
        }
    }

    /// As `send::switch_offset`.
    pub(super) fn switch_offset(&self) -> Lived<()> {
        let (w, s) = (self.world, self.world.from);
        if s.inside_send.load(SeqCst) != 0 {
            return Ok(());
        }
        if handover_state::return_wanted(&w.ring).is_some() {
            s.set_send_mode(SendMode::Returned);
            return Ok(());
        }
        self.step()?;
        let n = w.tcp(|t| t.put);
        self.step()?;
        if let Some(mode) = s.send_mode().after(SendEvent::SwitchPublished) {
            handover_state::publish_switch_offset(&w.ring, n);
            self.step()?;
            s.set_send_mode(mode);
        }
        self.step()
    }

    /// As `send::into_device`, in small pieces.
    pub(super) fn into_device(&self, bytes: &[u8]) -> Lived<usize> {
        let (w, mut held) = (self.world, self.sending());
        let mut sender = Sender::new(held.reborrow(), &w.ring);
        let mut done = 0;
        while done < bytes.len() {
            if sender.state().classes[0].room() == 0 {
                sender.refresh_in_steps(|| self.step())?;
                self.step()?;
            }
            let left = (bytes.len() - done).min(2) as u32;
            let mut message = match sender.reserve(left) {
                Ok(message) => message,
                Err(Refused::Full) => break,
                Err(Refused::Broken) => panic!("a place outside the buffer"),
            };
            let piece = &bytes[done..done + message.len()];
            self.step()?;
            // SAFETY: the piece is readable, and not the direction's memory.
            assert!(unsafe { message.fill(piece.as_ptr(), piece.len(), CopyHint::Ordinary) });
            self.step()?;
            message.commit_in_steps(|step| {
                if step == Step::Published {
                    // From here on the bytes are the peer's, whatever becomes of us.
                    w.accepted(piece);
                }
                self.step()
            })?;
            self.step()?;
            done += piece.len();
        }
        Ok(done)
    }

    /// As `residual::give_way`.
    pub(super) fn give_way(&self) -> Lived<()> {
        self.world.from.set_send_mode(SendMode::Returned);
        self.send_residual()
    }

    /// As `residual::send_residual`.
    pub(super) fn send_residual(&self) -> Lived<()> {
        let (w, s) = (self.world, self.world.from);
        if s.has(flag::RESIDUAL_SENT) {
            return Ok(());
        }
        let Some(taken) = handover_state::return_wanted(&w.ring) else { return Ok(()) };
        let state = *self.sending().view();
        let base = match handover_state::residual_base(&w.ring) {
            Some(base) => base,
            None => {
                let base = w.tcp(|t| t.put);
                self.step()?;
                handover_state::begin_residual(&w.ring, base);
                base
            }
        };
        loop {
            self.step()?;
            let at = taken + w.tcp(|t| t.put) - base;
            if at >= state.total() {
                s.set(flag::RESIDUAL_SENT);
                return Ok(());
            }
            let (offset, len) = buffer_classes::locate(&state, &w.ring, at, Beyond::Peer)
                .expect("the tail is in the channel");
            let base = w.ring.payload(offset, len as usize).expect("in the buffer");
            // SAFETY: payload() vouches for the bytes, and no thread writes them: the direction has
            // ended.
            let bytes = unsafe { std::slice::from_raw_parts(base, len as usize) };
            w.tcp(|t| {
                t.queue.extend(bytes);
                t.put += u64::from(len);
            });
        }
    }

    /// As `residual::serve_return`.
    pub(super) fn serve_return(&self) -> Lived<()> {
        let s = self.world.from;
        if handover_state::return_wanted(&self.world.ring).is_none() {
            return Ok(());
        }
        self.take_send()?;
        match s.send_mode() {
            SendMode::Device => self.give_way()?,
            SendMode::Returned => self.send_residual()?,
            _ => s.set_send_mode(SendMode::Returned),
        }
        self.leave_send()
    }

    /// As `detach::refuse`, for the bytes that go out.
    pub fn leave_outgoing(&self) -> Lived<()> {
        let (w, s) = (self.world, self.world.from);
        self.refuse_pairing(&w.from_pairing)?;
        self.take_send()?;
        match s.send_mode() {
            SendMode::Device => {
                let total = self.sending().view().total();
                self.step()?;
                if handover_state::publish_end(&w.ring, total) {
                    self.step()?;
                    s.set_send_mode(SendMode::Returned);
                } else {
                    self.give_way()?;
                }
            }
            _ => s.set_send_mode(SendMode::Returned),
        }
        self.leave_send()?;
        s.set_phase(Phase::Refused);
        self.step()?;
        self.serve_return()
    }

    /// As `pairing::refuse` of a connection that is paired: waits for a step in progress.
    pub(super) fn refuse_pairing(&self, word: &AtomicU32) -> Lived<()> {
        assert_ne!(lock::acquire(word, self.tid, self), Taken::Own);
        self.step()?;
        lock::release(word, self.tid, self);
        self.step()
    }

    /// As `life::end`: what is owed to the peer is sent, then TCP says FIN.
    pub fn close(&self) -> Lived<()> {
        if self.world.from.phase() == Phase::Paired || !self.world.from.has(flag::RESIDUAL_SENT) {
            self.serve_return()?;
        }
        self.step()?;
        self.world.tcp(|t| t.fin = true);
        Ok(())
    }
}
