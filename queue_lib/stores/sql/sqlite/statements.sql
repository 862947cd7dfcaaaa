-- The SQL of the queue on SQLite, one text for each step of each operation.
--
-- Everything that writes runs between BEGIN IMMEDIATE and COMMIT: there is one writer at a time, so
-- no statement here needs a lock of its own, and what one statement read is still true in the
-- next. States are literals (see schema.py): a bound state would match no partial index.
--
-- {now} and {held} stand for the two fragments that come first; {q} is the prefix of the tables with
-- their schema, {p} the prefix alone. Hot statements name their index (INDEXED BY): left alone, the
-- planner prefers to walk a whole group in its primary key, which already has the order of seq.

-- name: now
-- :now is null in production. julianday('now') is exact to 1 ms on every release and is the same
-- in all of one statement; unixepoch('subsec') is null, silently, before SQLite 3.42.
coalesce(:now, cast(round((julianday('now') - 2440587.5) * 86400000) as integer) * 1000)

-- name: held
-- The fence: rows that still have the very tokens of :claims, a JSON object of token -> seq. A row
-- that was claimed again has another token, a forged token has no row. State 0: its lease has run
-- out, a claim has seen that and took others; what it holds is still its last claim.
group_id = :group and state in (0, 3)
    and (seq, token) in (select value, key from json_each(:claims))


-- name: find_group
select g.id
from {q}topics t join {q}groups g on g.topic_id = t.id
where t.name = :topic and g.name = :group

-- name: find_topic
-- Its id, whether anybody consumes it, and what a publish needs besides, in one statement: rows of
-- the append that follows have a higher seq, since rowids grow in the order of the commits.
select t.id, exists (select 1 from {q}groups g where g.topic_id = t.id),
    (select coalesce(max(seq), 0) from {q}messages), {now}
from {q}topics t
where t.name = :topic

-- name: add_topic
insert into {q}topics (name) values (:topic)

-- name: add_group
-- No row comes back if the group exists, whoever registered it.
insert into {q}groups (topic_id, name, created_at) values (:topic, :group, {now})
on conflict (topic_id, name) do nothing
returning id, created_at

-- name: mark_taken
-- A group took the topic's messages: its dead-letter copies are messages like any other.
update {q}messages set untaken = 0 where topic_id = :topic and untaken


-- name: add_message
-- An id that exists, or came earlier in the same call, stays as it is.
insert into {q}messages
    (id, topic_id, key, payload, headers, priority, deliver_at, published_at, stored_at, untaken)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (id) do nothing

-- name: fan_out
-- A delivery for each message after :after and each group of its topic from :group on. A publish
-- passes group 0; the backfill of a new group passes that group, whose id is the highest ever.
-- A lane's first message becomes its head unless the lane has one; the others wait. Groups and
-- heads cannot change meanwhile, so no message is missed and no lane gets two heads or none.
insert into {q}deliveries (group_id, seq, state, priority, at, key)
select group_id, seq, state, priority, case state when 0 then :now else deliver_at end, key
from (
    select group_id, seq, priority, deliver_at, key,
        case
            when key is not null and (nth > 1 or exists (
                select 1 from {q}deliveries head indexed by {p}head
                where head.group_id = fresh.group_id and head.key = fresh.key
                    and head.state in (0, 1, 3, 5, 6)
            )) then 2
            when deliver_at > :now then 1
            else 0
        end as state
    from (
        select g.id as group_id, m.seq, m.priority, m.deliver_at, m.key,
            row_number() over (partition by g.id, m.key order by m.seq) as nth
        from {q}messages m join {q}groups g on g.topic_id = m.topic_id
        where m.seq > :after and g.id >= :group
    ) fresh
)

-- name: fan_out_unkeyed
-- The same for a publish without keys: no lane to look for.
insert into {q}deliveries (group_id, seq, state, priority, at)
select g.id, m.seq, m.deliver_at > :now, m.priority, max(m.deliver_at, :now)
from {q}messages m join {q}groups g on g.topic_id = m.topic_id
where m.seq > :after


-- name: peek
-- Is anything ready, and in how many µs do the next timer and the next lease end? For each of
-- :groups, a JSON array, in its order. Index seeks only.
select
    exists (
        select 1 from {q}deliveries indexed by {p}ready
        where group_id = asked.value and state = 0
    ),
    (
        select min(at) from {q}deliveries indexed by {p}timer
        where group_id = asked.value and state = 1
    ) - {now},
    (
        select min(at) from {q}deliveries indexed by {p}leased
        where group_id = asked.value and state = 3
    ) - {now}
from json_each(:groups) asked

-- name: end_timers
-- Due is a state: the claim then orders everything due by (priority, seq) in one index. `at`
-- stays: since when it is due. In slices, so that a million rows due at once block no publisher.
update {q}deliveries set state = 0
where group_id = :group and seq in (
    select seq from {q}deliveries indexed by {p}timer
    where group_id = :group and state = 1 and at <= {now}
    order by at limit :slice
)

-- name: end_leases
-- The token stays: it tells the claim that takes the row to count an attempt, and until then its
-- holder may still settle it.
update {q}deliveries set state = 0
where group_id = :group and seq in (
    select seq from {q}deliveries indexed by {p}leased
    where group_id = :group and state = 3 and at < {now}
    order by at limit :slice
)

-- name: live_leases
-- Counted from the leases themselves, in the transaction that adds to them: never above the cap,
-- and no counter that a crash leaves wrong.
select count(*) from {q}deliveries indexed by {p}leased
where group_id = :group and state = 3 and at >= {now}

-- name: claim
-- A row that still has a token was leased until it ran out: that attempt is spent.
-- Takes nothing, unless :always, while a timer or a lease has ended and its row is not ready yet:
-- that may come first. So the common claim, which is full, needs no look at them before.
update {q}deliveries
set state = 3, token = lower(hex(randomblob(16))), at = {now} + :lease,
    attempts = attempts + (token is not null)
where group_id = :group and seq in (
    select seq from {q}deliveries indexed by {p}ready
    where group_id = :group and state = 0 and (
        :always
        or not exists (
            select 1 from {q}deliveries indexed by {p}timer
            where group_id = :group and state = 1 and at <= {now}
        )
        and not exists (
            select 1 from {q}deliveries indexed by {p}leased
            where group_id = :group and state = 3 and at < {now}
        )
    )
    order by priority, seq limit :limit
)
returning seq

-- name: claimed
-- Apart from `claim`, whose RETURNING would copy every payload once more. A message row that was
-- deleted by hand takes nobody else's delivery down with it.
select d.seq, d.token, d.attempts, d.error, m.id, d.key, coalesce(m.payload, x''), m.headers,
    d.priority, coalesce(m.deliver_at, 0), coalesce(m.published_at, 0)
from {q}deliveries d left join {q}messages m on m.seq = d.seq
where d.group_id = :group and d.seq in (select value from json_each(:seqs))


-- name: ack
delete from {q}deliveries where {held} returning seq, key

-- name: kill
update {q}deliveries
set state = 4, attempts = attempts + 1, error = :error, at = {now}, token = null
where {held}
returning seq, key

-- name: promote
-- The oldest waiting delivery of each lane whose head has just gone. Only rows that were really
-- held name a lane here, so a late ack never puts a second head beside the living one.
update {q}deliveries
set state = case when at > {now} then 1 else 0 end, at = max(at, {now})
where group_id = :group and seq in (
    select (
        select next.seq from {q}deliveries next indexed by {p}waiting
        where next.group_id = :group and next.key = lane.value and next.state = 2
        order by next.seq limit 1
    )
    from json_each(:lanes) lane
)

-- name: requeue
-- The row stays the head of its lane: nobody behind it moves.
update {q}deliveries
set state = case when :backoff > 0 then 1 else 0 end, at = {now} + :backoff, token = null,
    attempts = attempts + :spend, error = coalesce(:error, error)
where {held}
returning seq

-- name: extend
-- A lease that ran out is not revived, even if nobody has claimed the row yet: a capped claim may
-- already have taken its place. (In state 0, `at` is the end of the lease, long past. The plus sign
-- keeps the planner from walking every lease of the group instead.)
update {q}deliveries set at = {now} + :lease
where {held} and +at >= {now}
returning seq


-- name: purge_dead
delete from {q}deliveries where (group_id, seq) in (
    select d.group_id, d.seq
    from {q}groups g cross join {q}deliveries d indexed by {p}dead
    where d.group_id = g.id and d.state = 4 and d.at < {now} - :retention
    limit :batch
)

-- name: spent_messages
-- In the order of seq from :after on, at most :window rows: those that are old enough and that no
-- delivery needs, and those (the 1) that are too young. Messages are stored in the order of time,
-- so nothing behind the first young one needs a look.
select m.seq, m.stored_at >= {now} - min(:retention, :dead_retention)
from (
    select seq, topic_id, stored_at, deliver_at, untaken from {q}messages
    where seq > :after
    order by seq limit :window
) m
where m.stored_at >= {now} - min(:retention, :dead_retention)
    or (
        max(m.stored_at, m.deliver_at)
            < {now} - case when m.untaken then :dead_retention else :retention end
        and not exists (
            select 1 from {q}groups g cross join {q}deliveries d
            where g.topic_id = m.topic_id and d.group_id = g.id and d.seq = m.seq
        )
    )
limit :batch

-- name: delete_messages
delete from {q}messages where seq in (select value from json_each(:seqs))

-- name: window_end
select seq from {q}messages where seq > :after order by seq limit 1 offset :window - 1


-- name: count
-- A lease that ran out is leased until somebody claims it (state 0 with a token); a timer that ended
-- is ready before a claim has made it so. What is ready is counted in one walk over the group (the
-- plus sign: with a look at the row of each, its index takes four times as long), the rest in the
-- index of its state. One statement, so one snapshot.
select
    ready.due + timer.due, timer.scheduled, timer.retrying,
    (
        select count(*) from {q}deliveries indexed by {p}waiting
        where group_id = :group and state = 2
    ),
    ready.leased + (
        select count(*) from {q}deliveries indexed by {p}leased
        where group_id = :group and state = 3
    ),
    (
        select count(*) from {q}deliveries indexed by {p}dead
        where group_id = :group and state = 4
    ),
    now - coalesce(min(ready.since, timer.since), ready.since, timer.since)
from (select {now} as now) clock
cross join (
    select count(*) - count(token) as due, count(token) as leased,
        min(case when token is null then at end) as since
    from {q}deliveries
    where group_id = :group and +state = 0
) ready
cross join (
    select count(*) filter (where at <= {now}) as due,
        count(*) filter (where at > {now} and attempts = 0) as scheduled,
        count(*) filter (where at > {now} and attempts > 0) as retrying,
        min(at) filter (where at <= {now}) as since
    from {q}deliveries indexed by {p}timer
    where group_id = :group and state = 1
) timer


-- name: check
select
    exists (select 1 from {q}topics), exists (select 1 from {q}groups),
    exists (select 1 from {q}messages), exists (select 1 from {q}deliveries)


-- name: lock
-- Takes the write lock in a transaction that somebody else began; changes nothing.
update {q}topics set name = name where false
