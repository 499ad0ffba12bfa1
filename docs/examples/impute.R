# Tables of `penstock pull STUDY --imputations --out FOLDER` in software for multiple imputation: R,
# survival, mitools, metafor, jsonlite.
#
#     Rscript impute.R FOLDER 'cox: Surv(years, died) ~ age + smoker' > answers.csv
#
# The last coefficient of a Cox, logistic or linear model: a row for each site, by Rubin's rules, and
# one without a site, of all of them. Any model whose coefficients have a covariance may stand in
# `fit`. In Debian it needs r-base-core, r-cran-survival, r-cran-mitools, r-cran-metafor and
# r-cran-jsonlite.

suppressPackageStartupMessages({
  library(jsonlite)
  library(survival)
  library(mitools)
  library(metafor)
})

fit <- function(question, rows) {
  formula <- as.formula(sub("^[^:]*:", "", question))
  switch(trimws(sub(":.*", "", question)),
    cox = coxph(formula, rows),
    logistic = glm(formula, binomial, rows),
    ols = lm(formula, rows)
  )
}

# Rows as they were released; levels in the study's order, the first one being compared with.
read_rows <- function(folder) {
  rows <- read.csv(file.path(folder, "imputations.csv"), check.names = FALSE)
  for (column in fromJSON(file.path(folder, "dictionary.json"), simplifyDataFrame = FALSE)$columns) {
    if (is.null(column$levels)) next
    labels <- as.character(rows[[column$name]])
    # A sign that a spreadsheet would run stands behind an apostrophe.
    labels <- ifelse(labels %in% column$levels, labels, sub("^'", "", labels))
    rows[[column$name]] <- factor(labels, unlist(column$levels))
    if (column$kind %in% c("ordered", "event")) {
      rows[[column$name]] <- as.numeric(rows[[column$name]]) - 1
    }
  }
  rows
}

given <- commandArgs(trailingOnly = TRUE)
rows <- read_rows(given[1])
if (is.null(rows[["_site"]])) rows[["_site"]] <- "all sites" # one release of all of them
sites <- lapply(split(rows, rows[["_site"]]), function(own) {
  found <- MIcombine(lapply(split(own, own[["_imputation"]]), fit, question = given[2]))
  last <- length(coef(found))
  data.frame(estimate = coef(found)[last], se = sqrt(diag(vcov(found)))[last], df = found$df[last])
})
table <- cbind(site = names(sites), do.call(rbind, sites))
if (nrow(table) > 1) {
  all <- rma(table$estimate, sei = table$se, method = "REML", test = "adhoc")
  table <- rbind(table, data.frame(site = NA, estimate = all$beta[1], se = all$se, df = all$ddf))
}
write.csv(table, row.names = FALSE)
