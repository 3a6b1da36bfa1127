%% Erlang's distribution: an `echo` process on one node, asked by another for so many seconds, 64
%% bytes each time. `dist:serve()` registers the process and waits; `dist:ask(Node, Seconds)` prints
%% `rate N p99 NS` and stops both.
-module(dist).
-export([serve/0, ask/2]).

serve() ->
    register(echo, self()),
    loop().

loop() ->
    receive
        {From, Body} -> From ! {self(), Body}, loop();
        stop -> init:stop()
    end.

ask(Node, Seconds) ->
    pong = net_adm:ping(Node),
    Body = binary:copy(<<"b">>, 64),
    Began = erlang:monotonic_time(nanosecond),
    Took = rounds(Node, Body, Began, Began + Seconds * 1000000000, []),
    Spent = erlang:monotonic_time(nanosecond) - Began,
    Number = length(Took),
    P99 = lists:nth(Number * 99 div 100 + 1, lists:sort(Took)),
    {echo, Node} ! stop,
    io:format("rate ~.1f p99 ~w~n", [Number * 1.0e9 / Spent, P99]),
    init:stop().

rounds(_, _, Now, End, Took) when Now >= End -> Took;
rounds(Node, Body, Before, End, Took) ->
    {echo, Node} ! {self(), Body},
    receive {_, Body} -> ok end,
    Now = erlang:monotonic_time(nanosecond),
    rounds(Node, Body, Now, End, [Now - Before | Took]).
