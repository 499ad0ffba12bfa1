# What `penstock analyse` does with pulled tables, without Penstock: R, survival, metafor, jsonlite.
#
#     Rscript combine.R FOLDER QUESTION... [--further QUESTION...] > answers.csv
#
# FOLDER is what `penstock pull STUDY --refits --out FOLDER` wrote. A QUESTION is a regression, and
# asks for the coefficient of its last term, or the share who have a duration's event by a time, where
# the event of another column may come first:
#
#     'cox: Surv(years, died) ~ age + smoker'   'logistic: smoker ~ age'   'ols: sbp ~ age + smoker'
#     'robust: Surv(years, died) ~ age + smoker'   'incidence(years, moved, 5)'
#
# `robust` is `cox` with Lin and Wei's standard errors; the share's numbers are those of its logit.
#
# After --further stand questions that the study has not declared: their intervals allow for what the
# tables' model misses. An answer has a row for each site, and one without a site: all sites
# together. To ask something else, change `fit`; the rest stays as it is. combine.py is the same in
# Python. The rule is in docs/analyse.md. In Debian it needs r-base-core, r-cran-survival,
# r-cran-metafor, r-cran-jsonlite.

suppressPackageStartupMessages({
  library(jsonlite)
  library(survival)
  library(metafor)
})

LEVEL <- 0.95
# What a model misses of a regression that no study declared, in standard errors of one row; and what
# noise has drawn to none of it, in sds of the noise.
MISFIT <- 0.01
DRAWN <- 0.4
INCIDENCE <- "^\\s*incidence\\(\\s*(\\w+)\\s*,\\s*(\\w+)\\s*,\\s*([0-9.eE+-]+)\\s*\\)\\s*$"

# -- 1. One table: an estimate and its variance -------------------------------------------------

# The last term's coefficient: (estimate, variance, complete rows); NA where there is none.
# events: of each duration the column of its event.
fit <- function(question, rows, events) {
  if (grepl(INCIDENCE, question)) return(find_incidence(question, rows, events))
  model <- trimws(sub(":.*", "", question))
  formula <- as.formula(sub("^[^:]*:", "", question))
  rows <- rows[complete.cases(rows[all.vars(formula)]), ]
  n <- nrow(rows)
  nothing <- c(NA, NA, n)
  if (n < 10) return(nothing)
  # By hand, since lm and glm leave out levels that a table has none of: another one would be first.
  design <- model.matrix(formula[-2], rows)
  told <- qr(design)
  kept <- sort(told$pivot[seq_len(told$rank)]) # what no columns before them tell
  if (!ncol(design) %in% kept || n < length(kept) + 2) return(nothing)
  x <- design[, kept, drop = FALSE]
  y <- eval(formula[[2]], rows)
  if (is.factor(y)) y <- as.numeric(y != levels(y)[1])
  hazards <- model %in% c("cox", "robust")
  ones <- if (hazards) sum(y[, "status"]) else sum(y)
  few <- if (hazards) ones else min(ones, n - ones)
  if (model != "ols" && few < max(1, length(kept) - 1)) return(nothing)
  found <- tryCatch(suppressWarnings(switch(model,
    # Defaults stop where the likelihood moves by 1e-9, and then the estimate by far more. Of
    # `robust` R has the sandwich of Efron's ties, without a factor for few rows.
    cox = , robust = coxph(y ~ x[, -1], ties = "efron", robust = model == "robust",
                           control = coxph.control(eps = 1e-12, iter.max = 50)),
    logistic = {
      first <- glm(y ~ 0 + x, binomial, control = glm.control(1e-14, 100))
      # A glm's variance is of the step before its last one: once more, from where it ended.
      glm(y ~ 0 + x, binomial, etastart = first$linear.predictors)
    },
    ols = lm(y ~ 0 + x)
  )), error = function(problem) NULL)
  if (is.null(found)) return(nothing)
  estimate <- coef(found)[length(coef(found))]
  variance <- vcov(found)[length(coef(found)), length(coef(found))]
  # Separated, or nearly a sum of others: ten thousand times a balanced column's variance.
  told <- if (hazards) ones else if (model == "logistic") ones * (n - ones) / n else Inf
  spread <- mean((design[, ncol(design)] - mean(design[, ncol(design)]))^2)
  # By the model's variance: of a term that separates events a sandwich is small.
  plain <- if (model == "robust") found$naive.var[length(coef(found)), length(coef(found))] else variance
  if (is.finite(told) && !isTRUE(plain * spread <= 1e4 / told)) return(nothing)
  c(estimate, variance, n)
}

# Aalen and Johansen's share with the event by a time: its logit, and that one's variance. A row with
# both events has had the one that is asked for.
find_incidence <- function(question, rows, events) {
  named <- regmatches(question, regexec(INCIDENCE, question))[[1]][-1]
  event <- events[[named[1]]]
  if (is.null(event)) stop(named[1], ": no duration with an event of its own")
  at <- as.numeric(named[3])
  rows <- rows[complete.cases(rows[c(named[1], event, named[2])]), ]
  nothing <- c(NA, NA, nrow(rows))
  if (nrow(rows) < 10) return(nothing)
  time <- rows[[named[1]]]
  other <- rows[[named[2]]]
  ended <- if (is.factor(other)) other != levels(other)[1] else other > 0
  state <- ifelse(rows[[event]] > 0, "event", ifelse(ended, "other", "none"))
  # Nobody has the event, or nobody is followed until then: the share is not known.
  if (!any(state == "event" & time <= at)) return(nothing)
  # Each time's numbers are multinomial: R has that error by an infinitesimal jackknife, and it is
  # the product's (Andersen, Borgan, Gill & Keiding 1993, 4.4.20).
  found <- survfit(Surv(time, factor(state, c("none", "event", "other"))) ~ 1)
  told <- summary(found, times = at, extend = TRUE)
  place <- match("event", found$states)
  share <- told$pstate[1, place]
  left <- told$pstate[1, match("(s0)", found$states)]
  if ((max(time) < at && left > 1e-12) || !(share < 1 - 1e-12)) return(nothing)
  c(log(share / (1 - share)), (told$std.err[1, place] / (share * (1 - share)))^2, nrow(rows))
}

# -- 2. One site: its copies, and what its refits are off by ------------------------------------

# refits: by number; of_fit, of_copy: the fit that each was drawn from, and to which copy that was
# made; weight: how many of the site's rows each row stands for.
measure <- function(question, copies, refits, of_fit, of_copy, fresh, events, weight) {
  fits <- sapply(copies, function(rows) fit(question, rows, events))
  again <- sapply(refits, function(rows) fit(question, rows, events))
  good <- fits[2, ] > 0 & !is.na(fits[2, ])
  at <- match(tapply(of_copy, of_fit, min), names(copies))
  whole <- tapply(again[2, ] > 0 & !is.na(again[2, ]), of_fit, all) & good[at]
  m <- sum(good)
  b <- sum(whole)
  if (2 * m < length(copies) || 2 * b < length(whole) || b == 0) return(NULL)
  centres <- tapply(again[1, ], of_fit, mean)[whole]
  scale <- mean(again[2, whole[match(of_fit, names(whole))]])
  two <- max(table(of_fit)) == 2
  errors <- centres - fits[1, at][whole]
  square <- mean(errors^2)
  moved <- 0
  free <- b
  if (two && b >= 3) {
    # What refits lack of their copies, copies lack of rows: corrected as far as beyond chance.
    bias <- mean(errors)
    share <- if (bias == 0) 0 else max(0, 1 - var(errors) / b / bias^2)
    moved <- share * bias
    free <- b - 1
    square <- var(errors) * (1 + share^2 / b) + ((1 - share) * bias)^2
  }
  within <- mean(fits[2, good])
  data.frame(
    n = round(mean(fits[3, good]) * weight),
    estimate = mean(fits[1, good]) - moved,
    within = within / weight,
    drawing = within,
    copies = m,
    square = square,
    # What is new in a table that is drawn: two tables of a fit show it.
    known = if (two) mean(tapply(again[1, ], of_fit, diff)[whole]^2) / 4 else fresh * scale,
    scale = scale / weight,
    rows = weight,
    b = free,
    c = if (two) b else Inf
  )
}

# -- 3. All sites: each square is drawn to what the others show ---------------------------------

# Adds `drawn` and `weight`; found: a table of sites for each question.
draw_squares <- function(found) {
  excess <- 0
  freedom <- 0
  for (question in names(found)) {
    sites <- found[[question]]
    sites$goal <- NA
    if (nrow(sites) >= 2) {
      middle <- (1 - 2 / (9 * sites$b))^3 # the median of chi-squared(b)/b
      if (all(is.finite(sites$c))) { # about the same share is new in each table
        share <- median(sites$known / sites$rows / sites$scale / (1 - 2 / (9 * sites$c))^3)
        sites$known <- (sites$known + share * sites$scale * sites$rows) / 2
        sites$c <- 2 * sites$c
      }
      common <- max(0, median((sites$square / middle - sites$known) / sites$scale * sites$n))
      sites$goal <- sites$known + common * sites$scale / sites$n
      logs <- log(pmax(sites$square, 1e-300) / sites$goal)
      others <- nrow(sites) - 1
      excess <- excess + sum((logs - mean(logs))^2) - others * mean(trigamma(sites$b / 2))
      freedom <- freedom + others
    }
    found[[question]] <- sites
  }
  prior <- if (freedom == 0) 0 else if (excess <= 0) Inf else 2 * invert_trigamma(excess / freedom)
  lapply(found, function(sites) {
    sites$weight <- ifelse(is.na(sites$goal), 0, pmin(prior, sites$b))
    drawn <- (sites$b * sites$square + sites$weight * sites$goal) / (sites$b + sites$weight)
    sites$drawn <- ifelse(is.na(sites$goal), sites$square, drawn)
    sites
  })
}

invert_trigamma <- function(value) {
  miss <- function(log_x) log(trigamma(exp(log_x))) - log(value)
  exp(uniroot(miss, c(-20, 20), tol = 1e-14, maxiter = 10000)$root)
}

# -- 4. Each site's variance and degrees of freedom ---------------------------------------------

# With the mechanism's variance: how far refits are off beyond sampling.
widen <- function(sites) {
  sd <- sqrt(2 * pmax(sites$drawn, sites$known)^2 / (sites$b + sites$weight) +
               2 * sites$known^2 / sites$c)
  sites$mechanism_variance <- pmax(0, sites$drawn - sites$known)
  # Copies differ by what is new in a table: all of it, where too little shows how much is.
  new <- ifelse(is.finite(sites$c) & sites$c >= 3, 2 * sites$known, sites$drawing)
  variance <- sites$within + new / sites$copies + sites$mechanism_variance
  a <- pmin(sites$mechanism_variance / sd, 40)
  cut <- (a^2 + 1) * pnorm(a) + a * dnorm(a) - (a * pnorm(a) + dnorm(a))^2
  sites$se <- sqrt(variance)
  sites$df <- 2 * (variance / sd)^2 / cut
  sites
}

# -- 5. Sites together ---------------------------------------------------------------------------

# REML, and the Hartung-Knapp interval that is floored (metafor's test = "adhoc"); of variances that
# are estimates, which metafor does not know: where all df are infinite and no effects go with
# variances, it is metafor's own.
# missed: (k, 2) by how much each site may be off, all alike, since no study declared the question;
# of two causes.
pool <- function(y, v, nu, missed) {
  k <- length(y)
  if (k == 1) return(data.frame(estimate = y, se = sqrt(v + sum(missed^2)), df = nu, tau2 = 0))
  near <- 1e-13 * (mean(v) + var(y))
  model <- rma(y, v, method = "REML", control = list(threshold = near, maxiter = 10000))
  tau2 <- model$tau2
  centre <- as.numeric(model$beta)
  w <- 1 / (v + tau2)
  h <- w / sum(w)
  unknown <- (v * w)^2 / nu
  least <- 1 + 4 * sum(h * (1 - h) * unknown)
  spread <- sum(w * (y - centre)^2) / (k - 1) * max(0, least - 2 * sum((1 - h)^2 * unknown) / (k - 1))
  # What weights make of effects that go with variances, less what chance has on average.
  apart <- h - 1 / k
  beyond <- sum(apart * (y - mean(y)))^2 - sum(apart^2 / w)
  most <- (k - 1) * max(tau2, var(y) - mean(v)) * sum(apart^2)
  weighed <- max(0, min(beyond, most))
  se <- sqrt(max(least, spread) / sum(w) + weighed + sum(colSums(h * missed)^2))
  found <- data.frame(estimate = centre, se = se, df = k - 1, tau2 = tau2)
  if (k >= 3) {
    half <- qt(0.5 + LEVEL / 2, k - 2) * sqrt(tau2 + se^2)
    found$prediction_low <- centre - half
    found$prediction_high <- centre + half
  }
  found
}

# -- the files -----------------------------------------------------------------------------------

read_columns <- function(folder) {
  fromJSON(file.path(folder, "dictionary.json"), simplifyDataFrame = FALSE)$columns
}

read_rows <- function(folder) {
  read <- function(name) {
    read.csv(file.path(folder, name), colClasses = "character", na.strings = "",
             check.names = FALSE, encoding = "UTF-8")
  }
  refits <- read("refits.csv")
  if (any(refits[["_copy"]] == "0")) stop("an older release: follow `older` in dictionary.json")
  copies <- read("pooled.csv")
  copies[["_refit"]] <- copies[["_fit"]] <- "0"
  rows <- rbind(copies[names(refits)], refits)
  columns <- read_columns(folder)
  levelled <- Filter(function(column) !is.null(column$levels), columns)
  for (column in levelled) {
    # In the study's order: the first is what others are compared with. In a CSV file a level that
    # a spreadsheet would take for a formula has a ' before it.
    labels <- rows[[column$name]]
    labels <- ifelse(labels %in% column$levels, labels, sub("^'", "", labels))
    rows[[column$name]] <- factor(labels, column$levels)
    if (column$kind %in% c("ordered", "event")) {
      rows[[column$name]] <- as.numeric(rows[[column$name]]) - 1
    }
  }
  numbers <- setdiff(names(rows), c("_site", sapply(levelled, function(column) column$name)))
  rows[numbers] <- lapply(rows[numbers], as.numeric)
  rows
}

main <- function(folder, given) {
  at <- match("--further", given, nomatch = length(given) + 1)
  questions <- given[given != "--further"]
  further <- given[seq_along(given) > at]
  models <- trimws(sub(":.*", "", questions[!grepl(INCIDENCE, questions)]))
  unknown <- setdiff(models, c("cox", "robust", "logistic", "ols"))
  if (length(unknown) > 0) {
    stop(unknown[1], ": ask for cox, robust, logistic, ols or incidence(...)")
  }
  rows <- read_rows(folder)
  timed <- Filter(function(column) !is.null(column$event), read_columns(folder))
  events <- setNames(lapply(timed, function(column) column$event),
                     sapply(timed, function(column) column$name))
  fresh <- fromJSON(file.path(folder, "study.json"))$fresh
  found <- list()
  for (question in questions) {
    for (site in unique(rows[["_site"]])) {
      own <- rows[rows[["_site"]] == site, ]
      copies <- own[own[["_refit"]] == 0, ]
      refits <- own[own[["_refit"]] > 0, ]
      again <- split(refits, refits[["_refit"]])
      weight <- if (is.null(own[["_weight"]])) 1 else own[["_weight"]][1]
      first <- function(name) sapply(again, function(rows) rows[[name]][1])
      one <- measure(question, split(copies, copies[["_copy"]]), again, first("_fit"),
                     first("_copy"), fresh, events, weight)
      if (!is.null(one)) found[[question]] <- rbind(found[[question]], cbind(site = site, one))
    }
  }
  if (length(found) == 0) stop("no site has an estimate")
  columns <- c("question", "site", "n", "estimate", "se", "df", "low", "high",
               "mechanism_variance", "tau2", "prediction_low", "prediction_high")
  found <- lapply(draw_squares(found), widen)
  answers <- do.call(rbind, lapply(names(found), function(question) {
    sites <- found[[question]]
    # A mean or an incidence compares nothing, and rests on its columns alone.
    alone <- grepl(INCIDENCE, question) || trimws(sub(".*~", "", question)) == "1"
    compares <- question %in% further && !alone
    missed <- cbind(MISFIT * sqrt(sites$n * sites$within),
                    DRAWN * sqrt(sites$mechanism_variance)) * compares
    together <- pool(sites$estimate, sites$se^2, sites$df, missed)
    fill <- function(part) {
      part[setdiff(columns, names(part))] <- NA
      part[columns]
    }
    both <- rbind(fill(sites), fill(together))
    both$question <- question
    both
  }))
  half <- qt(0.5 + LEVEL / 2, answers$df) * answers$se
  answers$low <- answers$estimate - half
  answers$high <- answers$estimate + half
  write.csv(answers, row.names = FALSE, na = "")
}

given <- commandArgs(trailingOnly = TRUE)
main(given[1], given[-1])
