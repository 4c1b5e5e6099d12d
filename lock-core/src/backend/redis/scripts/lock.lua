-- Every operation of the lock, in one source, so that a server that has forgotten its scripts has forgotten all of them.
--
-- KEYS  1: C, the counter of fencing tokens; 2: W, until when somebody may be waiting; then the key of each item; then the
--       queues of those keys, of all items but `renew`.
-- ARGV  1: how many items, and `*` if all of them (tries) are to be held or none; 2: '', or `floor aim`: the least number for
--       fencing tokens, and one to begin with if it is at most 10 ms ahead of the counter (0 for none); 3: what the caller's
--       places have in common: `life sent channel`, or '' if nobody may wait; then each item:
--         acquire  token, ttl in ms, size of the block, for how long in ms the key is kept from a grant on; takes a place
--                  if the key is busy
--         try      token, ttl, size of the block
--         take     the same, from the holder whose token follows; if it is the item's own, the lease is put back: a majority of
--                  nodes has it, so that here nobody comes first, and who has not heard of a grant gives way
--         renew    token, ttl in ms, size of the block of new fencing tokens (0 for none)
--         release  token
--         part     token, how long to keep the key in ms (0 to delete it), 1 if it is to be granted to nobody
--         inspect
--         force    1 to remove foreign holders too
-- Reply for each item: HELD first-fence size was-free | BUSY pttl kind position | RENEWED pttl first-fence size | RELEASED | GONE |
--       OTHER pttl total position | ERROR message | SHARED leases permits first last; then 1 if PUBLISH was refused, or 0; and if ARGV[2] is not
--       empty, TIME in µs. The kind of a holder is 0 for a token of ours, 1 for a foreign one, 2 for one of ours that the key
--       was granted to and that may not have heard of it, or if there is room and those who wait come first; 3 if both are
--       permits, and too few are left.
--
-- A call of nothing but plain renewals has a form of its own, since there may be many thousands a second: KEYS the keys;
-- ARGV 'renew', then for each its token and the ttl in ms. Reply for each: 0 if the ttl is left now, the ms that are left
-- if they are more, -1 for GONE, or the message of an error.
-- So has one of nothing but releases: KEYS as above; ARGV 'release', then the token of each. Reply as above.
--
-- A token says its mode: nothing follows its 32 digits if it is exclusive, `:shared` if it is shared, `:2/10` if it takes two of
-- ten permits.
-- An exclusive token is the value of its key. Those who share a key are a *group*: a sorted set at the key, of each token with the
-- time in ms at which its share ends. A member with the score +inf says what they share: `shared:` and their fencing token, or
-- `permits:` and the total. Another, `weighed`, says that a token may take more than one permit. The key expires with the last share.
-- OTHER is BUSY for permits of another total than the key has: they wait for the end of the group, as another mode does.
-- SHARED (7) is the answer to an inspect of a group: how many shares are live, how many permits they take (0 if they are none of
-- permits), and in how many ms the first and the last of them end.
-- C is an empty stream. Its last id `ms-seq`, with seq <= 999, is the last fencing token: ms * 1000 + seq.
-- W is a time in ms; no place of any queue ends later, unless that is more than a minute ahead. So a place is kept for a minute at
-- most without another request.
-- A queue is a hash. `first` and `next` bound the tickets; a token's own field is its ticket, and `#ticket` is its place:
-- `token end life T sent block channel`. It is live until `end`, a time in ms, unless that is more than `life` ahead. T: for
-- how many ms the key is kept from the grant on. `sent`: a time of the caller's clock, which the message of the grant repeats.
-- `block`: how many fencing tokens it wants. The channel is empty if it cannot be told. `granted` is the token that the
-- key was granted to last, until it has come, with the time until when that keeps the key.
-- A grant is told on the channel by `token key sent T first-fence size`.
--
-- Invariants (of this script; `free.rs` takes a free key without a look at its queue)
-- * A key holds a token, a group or nothing. It is written only if the token fits (the key is free, or its group has room) and
--   nobody with a live place comes first, or holds the item's own token (or the one to take it from), or if a lease is put back.
--   No key of another kind is overwritten.
-- * A share counts until its own end, whatever the expiry of the key. A group without a live share is as good as a free key.
-- * A key that is free, or about to be, goes to the first live place in the same step, with a number drawn for it, and then to
--   those that follow for as long as they fit; a place goes with its grant. So the first live place does not fit, but after
--   an expiry, lost data, a foreign DEL, a quiet release, or a grant that was refused (memory).
-- * PUBLISH comes after the SET of its grant, and its channel has a subscriber here, or the next place is granted. It does not
--   go to replicas.
-- * Per item: reads and checks first, then writes, PUBLISH last, each through pcall where it may be refused, so that an
--   error leaves nothing half done and spoils no other item. (A Lua error would keep what was written before it.)
-- * A fencing token is drawn before the key is written, so that a key is never held without a number of its own.
-- * W must cover every place, so it is extended first.
-- * No clock of a caller decides who holds; the server's decides only who may be passed over. (The floor and the
--   aim of a caller, who has seen several nodes, only raise fencing tokens.)
-- Where nobody waits it is three commands for an exclusive acquire, and two for all releases of a call: each costs as much as
-- the rest together. (Acquires of free keys need no script; see `free.rs`.) A share is some seven to acquire and two to four to
-- release; so what most calls need comes first, and functions that they do not need are not even made.

local ERROR, HELD, BUSY, RENEWED, RELEASED, GONE, OTHER, SHARED = 0, 1, 2, 3, 4, 5, 6, 7
local OURS, FOREIGN, RESERVED, FULL = 0, 1, 2, 3
local MARK = 'lock-core:1:' -- what our tokens begin with
local SPARE = 16 -- how many tickets without a place a queue may have beside as many as it has fields
local MODE_AT = #MARK + 33 -- where in a token its mode begins, if it is not exclusive
local WEIGHED = MARK .. 'weighed'
local NO_LOCK = 'WRONGTYPE the key holds no lock'
local MOST = 2 ^ 53 -- Lua counts no further without gaps
local MOST_AHEAD = 60000 -- how far ahead W may be, in ms: many times as far as a place of ours ends
local call, pcall = redis.call, redis.pcall
local KEYS, ARGV = KEYS, ARGV -- quicker to look up

-- The error of a server that takes no writes, found by one that changes nothing. A replica that lacks what its primary has must
-- not say that it is gone, nor that a key is busy to one who has no place there.
local function is_read_only(key)
  local reply = pcall('HDEL', key, MARK)
  return type(reply) == 'table' and string.find(reply.err, 'READONLY', 1, true) and reply
end

local got -- what W and the keys of the items held at first
local shares -- what is released and may be a share
if ARGV[1] == 'release' then
  -- Where nobody waits, it is a comparison and one command.
  local replies, ours = {}, {}
  got = call('MGET', unpack(KEYS, 2, #ARGV + 1))
  for i = 2, #ARGV do
    if got[i] == ARGV[i] then
      ours[#ours + 1], replies[i - 1] = KEYS[i + 1], RELEASED
    else
      replies[i - 1] = GONE
      if not got[i] and #ARGV[i] >= MODE_AT then
        shares = shares or { replies = replies }
        shares[#shares + 1] = i
      end
    end
  end
  if not got[1] and (#ours == 0 or type(pcall('DEL', unpack(ours))) ~= 'table') then
    if not shares then
      local refused = #ours == 0 and is_read_only(KEYS[2])
      if refused then return refused end
      replies[#ARGV] = 0
      return replies
    end
    shares.is_written = #ours > 0
  else
    shares = nil
  end
end

-- The error in a reply, if it is one, with the command, which Redis 7 leaves out.
local function refusal(reply, command)
  return type(reply) == 'table' and reply.err and reply.err .. ' (' .. command .. ')'
end

-- Executes a command that may be refused. Returns the error, if it is.
local function attempt(command, ...)
  return refusal(pcall(command, ...), command)
end

local now, micros = 0, 0 -- the time in ms and in µs, once it matters
local function look_at_clock()
  local time = call('TIME')
  micros = time[1] * 1000000 + time[2]
  now = math.floor(micros / 1000)
end

-- When the share of a token ends, if it has one that is live.
local function end_of_share(key, token)
  local ends = pcall('ZSCORE', key, token)
  -- What is not a group has no share.
  ends = type(ends) == 'string' and tonumber(ends)
  return ends and ends >= now and ends or nil
end

-- Ends the share of a token. The key expires with the last share that is left, and goes with the last. Returns whether there was
-- one that was live, and perhaps an error.
local function end_share(key, token)
  local last = pcall('ZREVRANGEBYSCORE', key, '(+inf', now, 'WITHSCORES', 'LIMIT', 0, 2)
  if not last[1] then return false end -- what is not a group, too
  if last[1] ~= token then
    -- The key expires with another one.
    if last[3] ~= token and not end_of_share(key, token) then return false end
    return true, attempt('ZREM', key, token)
  end
  if not last[3] then return true, attempt('DEL', key) end
  return true, attempt('ZREM', key, token) or attempt('PEXPIREAT', key, last[4])
end

if shares then
  -- Where nobody waits either, a share is four commands.
  local replies, is_written = shares.replies, shares.is_written
  look_at_clock()
  local longer = 0 -- by how much errors have made the reply longer
  for _, i in ipairs(shares) do
    local at = i - 1 + longer
    local was_live, failed = end_share(KEYS[i + 1], ARGV[i])
    is_written = is_written or was_live and not failed
    if was_live then replies[at] = failed and ERROR or RELEASED end
    if failed then
      table.insert(replies, at + 1, failed)
      longer = longer + 1
    end
  end
  local refused = not is_written and is_read_only(KEYS[2])
  if refused then return refused end
  replies[#replies + 1] = 0
  return replies
end

-- Pushes an expiry out to a ttl from now, and never in. Works without memory to spare. Returns 0 if the ttl is left now, the
-- ms that are left if they are more, or an error.
local gt = 'GT' -- what Redis 7 brought
local function push_out(key, ttl)
  if gt then
    local pushed = pcall('PEXPIRE', key, ttl, gt)
    if pushed == 1 then return 0 end
    if pushed ~= 0 then gt = nil end
  end
  local left = call('PTTL', key)
  if left >= tonumber(ttl) then return left end
  return 0, attempt('PEXPIRE', key, ttl)
end

-- Has shares of a key end at times in ms, each followed by its token. Works without memory to spare.
local function end_shares_at(key, ...)
  -- The server refuses ZADD then, unless the script has written before.
  pcall('ZREMRANGEBYSCORE', key, '-inf', '(' .. now)
  return attempt('ZADD', key, ...)
end

-- Has a group's key expire with the last share that is live. Returns an error, if there is one.
local function settle(key)
  local last = call('ZREVRANGEBYSCORE', key, '(+inf', now, 'WITHSCORES', 'LIMIT', 0, 1)
  if not last[2] then return attempt('DEL', key) end
  return attempt('PEXPIREAT', key, last[2])
end

-- Pushes the end of a share out to a ttl from now, and never in. Returns as `push_out` does, and -1 for a token without a share.
local function push_share_out(key, token, ttl)
  ttl = tonumber(ttl)
  local ends = end_of_share(key, token)
  if not ends then return -1 end
  local left = ends - now
  if left >= ttl then return left end
  -- Before the expiry, which may be refused to a replica only together with this.
  local failed = end_shares_at(key, now + ttl, token)
  if failed then return 0, failed end
  return 0, select(2, push_out(key, ttl))
end

if ARGV[1] == 'renew' then
  local got, replies, gone = call('MGET', unpack(KEYS)), {}, nil
  local shares -- by key: where the shares of it are, or is if there is one
  for i = 1, #KEYS do
    local key, token, ttl = KEYS[i], ARGV[2 * i], ARGV[2 * i + 1]
    if got[i] == token then
      if gt and pcall('PEXPIRE', key, ttl, gt) == 1 then
        replies[i] = 0 -- as push_out does, without a function's cost
      else
        local left, failed = push_out(key, ttl)
        replies[i] = failed or left
      end
    elseif not got[i] and #token >= MODE_AT then
      shares = shares or {}
      local of_key = shares[key]
      if type(of_key) == 'number' then of_key = { of_key } end
      if of_key then of_key[#of_key + 1] = i end
      shares[key] = of_key or i
    else
      replies[i], gone = -1, key
    end
  end
  if shares then look_at_clock() end
  for key, places in pairs(shares or {}) do
    if type(places) == 'number' then
      local i = places
      local left, failed = push_share_out(key, ARGV[2 * i], ARGV[2 * i + 1])
      replies[i] = failed or left
      if left == -1 then gone = key end
    else
      -- Four commands, however many they are.
      local tokens, longest = {}, 0
      local raised_to = {} -- by token, as a call may name one twice
      for n, i in ipairs(places) do tokens[n] = ARGV[2 * i] end
      local ends, ends_at, raised = pcall('ZMSCORE', key, unpack(tokens)), {}, {}
      for n, i in ipairs(places) do
        -- One by one where the command is not known or not allowed.
        local token, ttl = tokens[n], tonumber(ARGV[2 * i + 1])
        local share = ends.err and end_of_share(key, token) or tonumber(ends[n])
        local left = (raised_to[token] or share or 0) - now
        if left < 0 then
          replies[i], gone = -1, key
        elseif left >= ttl then
          replies[i] = left
        else
          raised[#raised + 1], longest = i, math.max(longest, ttl)
          ends_at[2 * #raised - 1], ends_at[2 * #raised] = now + ttl, token
          raised_to[token] = now + ttl
        end
      end
      if #raised > 0 then
        -- Before the expiry, as above.
        local failed = end_shares_at(key, unpack(ends_at)) or select(2, push_out(key, longest))
        for _, i in ipairs(raised) do replies[i] = failed or 0 end
      end
    end
  end
  return gone and is_read_only(gone) or replies
end

if ARGV[1] == 'release' then
  local of_each = {}
  for i = 2, #ARGV do of_each[2 * i - 3], of_each[2 * i - 2] = 'release', ARGV[i] end
  ARGV = { #ARGV - 1, '', '', unpack(of_each) }
end

local items = tonumber(string.match(ARGV[1], '^%d+'))
local all_or_none = string.sub(ARGV[1], -1) == '*'
local floor, aim = string.match(ARGV[2], '^(%d+) (%d+)$')
floor, aim = tonumber(floor) or 0, tonumber(aim) or 0

got = got or call('MGET', unpack(KEYS, 2, items + 2))
local waiting = tonumber(got[1]) or 0
if not (waiting < MOST) then waiting = 0 end

if waiting > 0 or ARGV[2] ~= '' then look_at_clock() end
if waiting <= now then waiting = 0 end
if waiting > now + MOST_AHEAD then
  -- It was written before this clock was set back, and no place that is live ends as late. Otherwise every call would look at the
  -- queues until then.
  waiting = now + MOST_AHEAD
  pcall('SET', KEYS[2], waiting, 'PX', MOST_AHEAD)
end

-- Draws a block of fencing tokens from the counter: its first, its size, or an error. A block ends with its millisecond, so
-- that the counter leads the clock by less than one.
local function draw(size)
  local id = pcall('XADD', KEYS[1], 'MAXLEN', '0', '*', '', '')
  if type(id) == 'table' then return nil, nil, refusal(id, 'XADD') end
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  ms, seq = tonumber(ms), tonumber(seq)
  -- Where seq is too large, the clock was set back, or a million were drawn in a second: the next ms begins.
  local first = ms * 1000 + math.min(seq, 1000)
  if aim <= first + 10000 then first = math.max(first, aim) end
  first = math.max(first, floor)
  size = math.min(size, 1000 - first % 1000)
  local last = first + size - 1
  if not (last < MOST) then return nil, nil, 'ERR ' .. KEYS[1] .. ' has counted too far, delete it (XADD)' end
  if seq > 999 or last > ms * 1000 + seq then
    id = string.format('%.0f-%.0f', math.floor(last / 1000), last % 1000) -- not tostring: it would lose digits
    local failed = attempt('XADD', KEYS[1], 'MAXLEN', '0', id, '', '')
    if failed then return nil, nil, failed end
  end
  return first, size
end

-- Where nobody waits, one acquire of a free key needs nothing of what follows.
if items == 1 and waiting == 0 and not got[2] and (ARGV[4] == 'acquire' or ARGV[4] == 'try') and #ARGV[5] < MODE_AT then
  local first, size = draw(tonumber(ARGV[7]))
  -- MGET shows what is not a string as free.
  local set = first and pcall('SET', KEYS[3], ARGV[5], 'PX', ARGV[6], 'NX')
  if set and not set.err then return { HELD, first, size, 1, 0, ARGV[2] ~= '' and micros or nil } end
end

-- Here, as nothing is written yet that an error would leave half done.
if now == 0 then look_at_clock() end

local written = {} -- what this call has put at a key: a token, or false
local refused = 0

-- The fencing tokens of an item: the first, how many, or an error. Numbers have to rise per key only, so that keys that have
-- had none in this call share what was drawn last.
local drawn, drawn_size
local has_drawn = {}
local function take_fences(key, size)
  if not drawn or has_drawn[key] or size > drawn_size then
    local failed
    drawn, drawn_size, failed = draw(size)
    if failed then return nil, nil, failed end
    size = drawn_size
  end
  has_drawn[key] = true
  return drawn, size
end

-- The group at a key that holds no token: `of`, what its holders share; `number`, their fencing token or the total; whether
-- it is `weighed`. Or nil if the key is free, and perhaps an error.
local function group_at(key)
  -- The marks come last, behind the share that ends last.
  local last = pcall('ZRANGE', key, -3, -1, 'WITHSCORES')
  if last.err then return nil, string.sub(last.err, 1, 9) == 'WRONGTYPE' and NO_LOCK or refusal(last, 'ZRANGE') end
  if #last == 0 then return nil end
  local weighed = last[#last - 1] == WEIGHED
  local at = #last - (weighed and 3 or 1)
  local mark = last[at + 1] == 'inf' and last[at] or ''
  local of, number = string.match(string.sub(mark, #MARK + 1), '^(%a+):(%d+)$')
  if not of or string.sub(mark, 1, #MARK) ~= MARK then return nil, NO_LOCK end
  local ends = tonumber(last[at - 1]) or 0
  if ends == math.huge then return nil, NO_LOCK end -- a mark of another program
  if ends >= now then return { of = of, number = number, weighed = weighed } end
  -- All shares are over.
  return nil, attempt('DEL', key)
end

-- What a token is for: `exclusive`, `shared`, or `permits`, then the total and how many it takes.
local function mode_of(token)
  if #token < MODE_AT then return 'exclusive' end
  local take, total = string.match(token, ':(%d+)/(%d+)$')
  if not take then return 'shared' end
  return 'permits', total, tonumber(take)
end

-- How many permits of a group are taken, or how many share its key.
local function taken_of(key, group)
  if not group.weighed then return call('ZCOUNT', key, now, '(+inf') end
  local taken = 0
  for _, other in ipairs(call('ZRANGEBYSCORE', key, now, '(+inf')) do
    -- Another program may have written a member of its own.
    taken = taken + (select(3, mode_of(other)) or 1)
  end
  return taken
end

-- Whether a group has room for a token; then whether it has permits of another total.
local function has_room(key, group, token)
  local of, total, take = mode_of(token)
  if of ~= group.of then return false end
  if of == 'shared' then return true end -- however many there are
  if total ~= group.number then return false, true end
  return taken_of(key, group) + take <= tonumber(total)
end

-- Gives a token a share until a time in ms: of the group at the key, or of a new one if the key is free or `held` by a token to
-- take it from. Returns its fencing token, or an error.
local function join(key, group, token, ends, held)
  local of, total, take = mode_of(token)
  local fence = group and of == 'shared' and tonumber(group.number)
  local add = { key, string.format('%.0f', ends), token }
  if not fence or fence < floor then
    local first, _, failed = take_fences(key, 1)
    if failed then return nil, failed end
    if fence then pcall('ZREM', key, MARK .. 'shared:' .. group.number) end
    fence = first
    local number = of == 'shared' and string.format('%.0f', fence) or total
    add[4], add[5] = '+inf', MARK .. of .. ':' .. number
  end
  if take and take > 1 then add[#add + 1], add[#add + 2] = '+inf', WEIGHED end
  local left = held and call('PTTL', key)
  local failed = held and attempt('DEL', key)
  if failed then return nil, failed end
  -- So that the dead do not add up for as long as others live.
  if group then pcall('ZREMRANGEBYSCORE', key, '-inf', '(' .. now) end
  failed = attempt('ZADD', unpack(add))
  if not failed and group then
    failed = select(2, push_out(key, ends - now))
  elseif not failed then
    failed = attempt('PEXPIREAT', key, add[2])
    if failed then pcall('DEL', key) end
  end
  if failed then
    if held then pcall('SET', key, held, 'PX', left) end
    return nil, failed
  end
  written[key] = false
  return fence
end

-- Where nobody waits, one acquire of a share needs nothing of what follows either.
if items == 1 and waiting == 0 and not got[2] and (ARGV[4] == 'acquire' or ARGV[4] == 'try') and #ARGV[5] >= MODE_AT then
  local key, token = KEYS[3], ARGV[5]
  local share, group, failed = end_of_share(key, token), group_at(key)
  if not failed and (share or not group or has_room(key, group, token)) then
    -- It may be late, and the lease extended since.
    local first = join(key, group, token, math.max(now + tonumber(ARGV[6]), share or 0))
    if first then return { HELD, first, 1, share and 0 or 1, 0, ARGV[2] ~= '' and micros or nil } end
  end
end

-- Gives a key to an exclusive token: one that is free, or that it holds, or `held` by a token to take it from. Returns the
-- fencing tokens: the first, how many, or an error; then the group that is in the way, if there is one.
local function hold(key, token, ttl, block, held)
  local first, size, failed = take_fences(key, tonumber(block))
  if failed then return nil, nil, failed end
  -- It may be late, and the lease extended since.
  if held == token then ttl = math.max(ttl, call('PTTL', key)) end
  local set = pcall('SET', key, token, 'PX', ttl, held and 'XX' or 'NX')
  if not set then
    -- MGET shows what is not a string as free.
    local group
    group, failed = group_at(key)
    if group or failed then return nil, nil, failed, group end
    set = pcall('SET', key, token, 'PX', ttl)
  end
  failed = refusal(set, 'SET')
  if failed then return nil, nil, failed end
  written[key] = token
  return first, size
end

-- What a queue says: the bounds of its tickets, the ticket of a token, the token that the key was granted to last, and the end of that.
local function look(queue, token)
  local found = pcall('HMGET', queue, 'first', 'next', token, 'granted')
  local granted, ends = string.match(found[4] or '', '^(%S+) (%d+)$')
  return tonumber(found[1]), tonumber(found[2]), tonumber(found[3]), granted, tonumber(ends)
end

-- Numbers the places of a queue again, from its first ticket on. Returns the ticket of a token, which may be the next one, and that.
local function renumber(queue, first, following, token)
  local own, number = nil, first
  for ticket = first, following - 1 do
    local place = pcall('HGET', queue, '#' .. ticket)
    if type(place) == 'string' then
      local owner = string.match(place, '^%S*')
      if number < ticket then
        pcall('HDEL', queue, '#' .. ticket)
        pcall('HSET', queue, owner, number, '#' .. number, place)
      end
      if owner == token then own = number end
      number = number + 1
    end
  end
  return own or number, number
end

-- Gives a token a place at the end of the queue, or refreshes the one that it has. Returns its position, or 0 if it has
-- none; then the token that the key was granted to last, and the end of that.
local function keep_place(queue, token, lasts, block)
  local life, sent, channel = string.match(ARGV[3], '^(%d+) (%d+) (.*)$')
  local ends = now + tonumber(life)
  if ends > waiting then
    -- What was granted before W had ended is confirmed, or over.
    if waiting == 0 then pcall('HDEL', queue, 'granted') end
    -- Somewhat later, so that not every place writes it.
    local until_then = ends + 500
    if attempt('SET', KEYS[2], until_then, 'PX', until_then - now) then return 0 end
    waiting = until_then
  end
  local first, following, ticket, granted, granted_until = look(queue, token)
  local place = table.concat({ token, ends, life, lasts, sent, block, channel }, ' ')
  ticket = ticket or following or 1
  first = first or ticket
  -- Positions count from the first who is there still.
  while first < ticket and not pcall('HGET', queue, '#' .. first) do first = first + 1 end
  -- A grant looks at each ticket: most may belong to waiters that have gone, while one before them waits on.
  local fields = ticket - first > SPARE and pcall('HLEN', queue)
  if type(fields) == 'number' and ticket - first > SPARE + 2 * fields then
    ticket, following = renumber(queue, first, math.max(following or 0, ticket), token)
  end
  following = math.max(following or 0, ticket + 1)
  local reply = pcall('HSET', queue, 'first', first, 'next', following, token, ticket, '#' .. ticket, place)
  if type(reply) == 'table' then return 0, granted, granted_until end
  pcall('PEXPIREAT', queue, waiting + 1000)
  return ticket - first + 1, granted, granted_until
end

-- Deletes a queue in which nothing is left.
local function drop_if_empty(queue)
  local left = pcall('HLEN', queue)
  if type(left) == 'number' and left <= 2 then pcall('DEL', queue) end
end

-- Removes that the key was granted to the token that it was granted to last.
local function forget_grant(queue)
  pcall('HDEL', queue, 'granted')
  drop_if_empty(queue)
end

-- Removes the place of a token. Returns the bounds of the queue, perhaps an error, and whether the key was granted to
-- the token last: if nobody else is granted it, that is to be forgotten.
local function leave(queue, token)
  local first, following, ticket, granted = look(queue, token)
  local failed = ticket and attempt('HDEL', queue, token, '#' .. ticket)
  if ticket then drop_if_empty(queue) end
  return first, following, failed, granted == token
end

-- Says on the channel of a place that the key was granted to it. Returns whether its owner may come, and for how long the key is kept if that was lengthened.
local function tell(channel, key, ends, token, sent, lasts, number, size)
  if channel == '' then return true end -- it comes by itself
  local message = table.concat({ token, key, sent, lasts, string.format('%.0f', number), size }, ' ')
  -- Not on replicas, who would tell it even where it is not heard here and the next place is granted: after a switchover,
  -- waiters may still listen at the former primary.
  if redis.set_repl then redis.set_repl(redis.REPL_NONE) end
  -- The channels of a cluster's slot begin with its tag.
  local publish, heard = 'PUBLISH', nil
  if string.sub(channel, 1, 1) == '{' then
    publish = 'SPUBLISH'
    -- The bus of the cluster takes the message to replicas, too. Who hears it only there, at a former primary, would hold beside the next.
    local here = pcall('PUBSUB', 'SHARDNUMSUB', channel)
    if here[2] == 0 then heard = 0 end
  end
  heard = heard or pcall(publish, channel, message)
  if redis.set_repl then redis.set_repl(redis.REPL_ALL) end
  if type(heard) ~= 'table' then return heard > 0 end
  -- Its next check finds the grant.
  refused = 1
  lasts = math.max(lasts, ends - now)
  if #token < MODE_AT then pcall('PEXPIRE', key, lasts) else push_share_out(key, token, lasts, 0) end
  return true, lasts
end

-- Gives a key to the live places from a ticket on and before another, in their order, for as long as they fit. The key is free,
-- has a group, or holds a token that is `over`. Places that are not live are dropped. Returns whether somebody got it, and whether
-- a live place is left that does not fit. If nobody got it, the key is as before, or free.
local function grant(queue, key, over, first, following, before)
  if not first or not following then return false, false end
  local is_given, is_set = false, false
  for ticket = first, before - 1 do
    local place = call('HGET', queue, '#' .. ticket)
    local token, ends, life, lasts, sent, block, channel =
      string.match(place or '', '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
    ends = tonumber(ends) or 0
    if place and not (now < ends and ends - now <= tonumber(life)) then
      pcall('HDEL', queue, '#' .. ticket, string.match(place, '^%S*'))
    elseif place and #token >= MODE_AT and end_of_share(key, token) then
      -- It has come, unseen by its place (W was evicted). A grant would cut its share short.
      pcall('HDEL', queue, '#' .. ticket, token)
    elseif place then
      local is_share = #token >= MODE_AT
      local group, failed
      if not over then
        group, failed = group_at(key)
        if failed then break end
        if group and not has_room(key, group, token) then return is_given, true end
      end
      local number, size = nil, 1
      if is_share then
        number, failed = join(key, group, token, now + tonumber(lasts), over)
      else
        number, size, failed = hold(key, token, lasts, block, over)
      end
      if failed then break end
      over, is_set = not is_share and token, not is_share
      pcall('HDEL', queue, token, '#' .. ticket)
      pcall('HSET', queue, 'first', ticket + 1, 'granted', token .. ' ' .. string.format('%.0f', now + lasts))
      local is_told, kept = tell(channel, key, ends, token, sent, lasts, number, size)
      if kept then pcall('HSET', queue, 'granted', token .. ' ' .. string.format('%.0f', now + kept)) end
      is_given = is_given or is_told
      if is_told and not is_share then return true, false end
      if is_share and not is_told then end_share(key, token) end
    end
    if ticket == following - 1 and not is_given then pcall('DEL', queue) end
  end
  if is_set then
    pcall('DEL', key)
    written[key] = false
  end
  return is_given, false
end

-- The kind of the holders that an acquire has found: a token with so much left, or the group at the key. What lasts longer than the last
-- grant was confirmed. (The clock by which keys expire stands still within a call, and TIME does not.)
local function kind_of(held, left, granted, granted_until, key)
  if held and string.sub(held, 1, #MARK) ~= MARK then return FOREIGN end
  if not granted or held and held ~= granted then return OURS end
  local ends = held and now + left or not held and end_of_share(key, granted)
  return ends and ends <= granted_until + 50 and RESERVED or OURS
end

local replies, r = {}, 0
local is_gone, is_unplaced = false, false
local begins, taken = {}, {} -- of all or none: where the reply of each item begins, and what was free before
local is_refused = false
local function reply(code, one, two, three, four)
  is_gone = is_gone or code == GONE
  replies[r + 1], replies[r + 2], replies[r + 3], replies[r + 4], replies[r + 5] = code, one, two, three, four
  r = r + (four and 5 or three and 4 or two and 3 or one and 2 or 1)
end

local function reply_unless(failed, code)
  if failed then reply(ERROR, failed) else reply(code) end
end

-- Keys that are released and that nobody waits for are deleted together, before the next item of one of them.
local released, is_released, said_at = {}, {}, {}
local function delete_released()
  if #released > 0 and type(pcall('DEL', unpack(released))) == 'table' then
    -- Refused, if only for one of them.
    for i = #released, 1, -1 do
      local failed = attempt('DEL', released[i])
      if failed then
        replies[said_at[i]] = ERROR
        table.insert(replies, said_at[i] + 1, failed)
        r = r + 1
        written[released[i]] = nil
      end
    end
  end
  released, is_released, said_at = {}, {}, {}
end

local a, q = 4, items + 2
for i = 1, items do
  local operation, token, key = ARGV[a], ARGV[a + 1], KEYS[i + 2]
  if all_or_none then begins[i] = r + 1 end
  local queue
  if operation ~= 'renew' then
    q = q + 1
    queue = KEYS[q]
  end
  if is_released[key] then delete_released() end
  local held = written[key]
  if held == nil then held = got[i + 1] end

  if all_or_none and is_refused then
    reply(GONE)
    a = a + 4

  elseif operation == 'acquire' or operation == 'try' or operation == 'take' then
    local is_share = #token >= MODE_AT
    local from, share, other
    if operation == 'take' then from = ARGV[a + 4] end
    if is_share and not held then
      share = end_of_share(key, token)
      -- Also beside its own share: this may be a repeat, and a late acquire of `from` have come before it.
      if from and from ~= token and string.sub(from, MODE_AT) == string.sub(token, MODE_AT) then
        other = end_of_share(key, from) and from
      end
    end
    -- By the token, or by the one to take it from.
    local is_held = held == token or held == from or share or other
    local ticket, granted, granted_until, is_late
    if waiting > 0 and not (held or share or from) then
      local first, following
      first, following, ticket, granted = look(queue, token)
      is_late = select(2, grant(queue, key, nil, first, following, ticket or following))
      held = written[key]
    end
    local may_take = is_held or not (held or from or is_late)
    if from == token and not may_take then
      may_take = not held or waiting > 0 and kind_of(held, call('PTTL', key), select(4, look(queue, token))) == RESERVED
    end
    local group, failed, has_other_total
    local fits = true
    if not held and (is_share or not may_take) then group, failed = group_at(key) end
    if is_share and group and not is_held then fits, has_other_total = has_room(key, group, token) end

    local first, size = nil, 1
    if may_take and fits and not failed then
      local ttl = ARGV[a + 2]
      if is_share then
        -- It may be late, and the lease extended since.
        first, failed = join(key, group, token, math.max(now + tonumber(ttl), share or 0), held)
        if other and not failed then failed = select(2, end_share(key, other)) end
      else
        first, size, failed, group = hold(key, token, ttl, ARGV[a + 3], held)
      end
    end
    if failed then
      reply(ERROR, failed)
    elseif first then
      if waiting > 0 and (held or share or other or ticket or granted == token or from == token) then
        local _, _, _, was_granted = leave(queue, token)
        if was_granted then forget_grant(queue) end
      end
      reply(HELD, first, size, is_held and 0 or 1)
      taken[i] = not is_held and token
      -- Those behind it may share the key now: it was exclusive, none of them has found that it has expired, or its place is gone.
      if is_share and waiting > 0 and (held or ticket or other) then
        local first, following = look(queue, '')
        grant(queue, key, nil, first, following, following)
      end
    elseif from then
      reply(GONE)
    else
      local left, position = call('PTTL', key), 0
      if group and group.of == 'permits' and not has_other_total then
        -- The first that are given back may be enough.
        local soonest = call('ZRANGEBYSCORE', key, now, '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        left = tonumber(soonest[2]) - now
      end
      if operation == 'acquire' then
        position, granted, granted_until = keep_place(queue, token, ARGV[a + 4], ARGV[a + 3])
      elseif waiting > 0 then
        granted, granted_until = select(4, look(queue, token))
      end
      local kind
      if group and group.of == 'permits' and mode_of(token) == 'permits' then
        kind = FULL
      else
        -- Where there is room, it is for those who wait first.
        kind = is_share and group and fits and RESERVED or kind_of(held, left, granted, granted_until, key)
      end
      is_unplaced = is_unplaced or position == 0 and queue
      reply(has_other_total and OTHER or BUSY, left, has_other_total and tonumber(group.number) or kind, position)
    end
    is_refused = is_refused or all_or_none and replies[begins[i]] ~= HELD
    a = a + (operation == 'try' and 4 or 5)

  elseif operation == 'release' or operation == 'part' then
    local after, quiet = '0', false
    if operation == 'part' then
      after, quiet = ARGV[a + 2], ARGV[a + 3] == '1'
      a = a + 2
    end
    a = a + 2
    local first, following, failed, was_granted
    local passed = false
    -- Else it might be granted to itself.
    if waiting > 0 then first, following, failed, was_granted = leave(queue, token) end
    if held ~= token then
      local share = not held and not failed and #token >= MODE_AT
      if share and after == '0' then
        share, failed = end_share(key, token)
      elseif share then
        share = end_of_share(key, token)
        failed = share and (end_shares_at(key, now + tonumber(after), token) or settle(key))
      end
      if waiting > 0 and not (held or failed or quiet) then
        passed = grant(queue, key, nil, first, following, following)
      end
      reply_unless(failed, share and RELEASED or GONE)
    elseif after ~= '0' then
      reply_unless(attempt('PEXPIRE', key, after), RELEASED)
    elseif waiting == 0 then
      reply(RELEASED)
      released[#released + 1], said_at[#said_at + 1] = key, r
      written[key], is_released[key] = false, true
    elseif not quiet and grant(queue, key, token, first, following, following) then
      passed = true
      reply(RELEASED)
    else
      failed = attempt('DEL', key)
      if not failed then written[key] = false end
      reply_unless(failed, RELEASED)
    end
    if was_granted and not passed then forget_grant(queue) end

  elseif operation == 'renew' then
    local ttl = ARGV[a + 2]
    local left, failed = -1
    if held == token then
      left, failed = push_out(key, ttl)
    elseif not held and #token >= MODE_AT then
      left, failed = push_share_out(key, token, ttl)
    end
    if failed or left == -1 then
      reply_unless(failed, GONE)
    else
      local first, size = 0, 0
      if ARGV[a + 3] ~= '0' then first, size = take_fences(key, tonumber(ARGV[a + 3])) end
      reply(RENEWED, left > 0 and left or tonumber(ttl), first or 0, size or 0)
    end
    a = a + 4

  else
    local group, failed
    if not held then group, failed = group_at(key) end
    local is_held = held or group
    if failed then
      reply(ERROR, failed)
    elseif operation == 'inspect' then
      if not is_held then
        reply(GONE)
      elseif held then
        reply(BUSY, call('PTTL', key), kind_of(held), 0)
      else
        local leases = call('ZCOUNT', key, now, '(+inf')
        local permits = group.of == 'permits' and taken_of(key, group) or 0
        local first = call('ZRANGEBYSCORE', key, now, '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        local last = call('ZREVRANGEBYSCORE', key, '(+inf', now, 'WITHSCORES', 'LIMIT', 0, 1)
        reply(SHARED, leases, permits, math.min(first[2] - now, MOST), math.min(last[2] - now, MOST))
      end
    elseif not is_held or (token == '0' and kind_of(held) == FOREIGN) then
      reply(GONE)
    else
      failed = attempt('DEL', key)
      if not failed then
        written[key] = false
        local first, following
        if waiting > 0 then first, following = look(queue, '') end
        grant(queue, key, nil, first, following, following)
      end
      reply_unless(failed, RELEASED)
    end
    a = a + (operation == 'force' and 2 or 1)
  end
end
delete_released()
if all_or_none and is_refused then
  -- What was taken is given back, to those who wait first.
  local said = replies
  replies, r, begins[items + 1] = {}, 0, r + 1
  for i = 1, items do
    if taken[i] then
      local key, queue, first, following = KEYS[i + 2], KEYS[items + 2 + i]
      local over = #taken[i] < MODE_AT and taken[i]
      if not over then end_share(key, taken[i]) end
      if waiting > 0 then first, following = look(queue, '') end
      if not grant(queue, key, over, first, following, following) and over then pcall('DEL', key) end
      reply(GONE)
    else
      for at = begins[i], begins[i + 1] - 1 do
        r = r + 1
        replies[r] = said[at]
      end
    end
  end
end
-- At a queue: while anybody waits, W is no hash, and the command would be an error each time.
local read_only = (is_gone or is_unplaced) and is_read_only(is_unplaced or KEYS[2])
if read_only then return read_only end
replies[r + 1] = refused
if ARGV[2] ~= '' then replies[r + 2] = micros end
return replies
